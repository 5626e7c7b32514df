"""The HTML report of a finished training."""
