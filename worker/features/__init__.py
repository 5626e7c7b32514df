"""Features that can be removed: each is one folder."""
