"""What is claimed of containers, tried in real ones with real limits: `make containers`."""
