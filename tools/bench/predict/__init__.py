"""Predictions over HTTP, compared with a plain inference service, and next to a training."""
