"""Calibrations without processes, and their findings."""
