"""Predictions over HTTP beside a plain inference service, and beside a training."""
