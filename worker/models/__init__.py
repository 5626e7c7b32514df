"""Models with names: aliases that point to kept models by hash."""
