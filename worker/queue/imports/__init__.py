"""Imports beside the jobs of a worker, each in a process of its own at idle priority."""
