"""Imports that the web service was asked for: their records in Redis, and what was uploaded for them."""
