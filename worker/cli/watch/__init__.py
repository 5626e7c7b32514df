"""Watch a job: live in a terminal, else one line per event."""
