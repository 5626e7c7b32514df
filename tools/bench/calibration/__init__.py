"""Calibration in containers: its time, its choice, its prediction."""
