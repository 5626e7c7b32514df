"""Imports that the web service was asked for: their records in Redis, and the uploads for them."""
