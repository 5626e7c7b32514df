"""Measures real training steps in a child process and returns the plan that runs fastest here.

The package knows nothing of Redis, RQ, HTTP or environment variables.
"""
