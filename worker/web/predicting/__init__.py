"""Predictions over HTTP: the process that makes them, its queue and its metrics."""
