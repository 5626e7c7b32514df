"""Redis: connections that find the primary, keys, scripts, retries."""
