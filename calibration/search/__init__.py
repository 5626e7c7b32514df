"""The search for the fastest plan."""
