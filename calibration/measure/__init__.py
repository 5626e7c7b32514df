"""Measuring plans in child processes."""
