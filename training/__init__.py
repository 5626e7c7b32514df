"""Data, augmentation, models, the training loop, artifacts and resource detection.

The package knows nothing of Redis, RQ, HTTP, calibration or environment variables: what it needs arrives as arguments.
"""
