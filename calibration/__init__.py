"""Measures real training steps in a child process and returns the plan that runs fastest here.

Knows nothing of Redis, RQ, HTTP or environment variables.
"""
