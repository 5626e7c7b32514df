"""Timing of work: the reference workload, and what a CPU quota makes of seconds."""
