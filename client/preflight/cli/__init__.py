"""Commands of `preflight` that need no worker."""
