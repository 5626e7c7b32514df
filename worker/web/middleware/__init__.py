"""Middleware: what is settled before access control and routes see a request."""
