"""Workers, commands and trainings that tests run."""
