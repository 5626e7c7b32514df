"""The page, its service, and the proxies before it."""
