"""Launching any command so that the training in it is tuned: `preflight run`."""
