"""Checkpoints: format, saving and resuming."""
