"""Checks in real containers with real limits: `make containers`."""
