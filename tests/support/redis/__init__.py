"""Redis with jobs, fences and garbage in it."""
