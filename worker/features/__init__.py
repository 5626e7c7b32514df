"""Features that a worker can do without: each is one folder, and `worker.features.entries` is their list."""
