"""Imports by a worker, each in a separate process, which has idle priority while a job runs."""
