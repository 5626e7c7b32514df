"""Records of the service in Redis: keys, fenced writes and retries."""
