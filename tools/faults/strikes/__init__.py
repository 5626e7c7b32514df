"""Faults that strike while a job runs."""
