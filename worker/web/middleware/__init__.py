"""Middleware that does not depend on the routes: HEAD, the prefix of a proxy, and paced sending."""
