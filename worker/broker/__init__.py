"""What the service keeps in Redis: keys, fenced writes and retries."""
