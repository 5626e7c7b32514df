"""One training step: forward, backward, update, and the state that it changes."""
