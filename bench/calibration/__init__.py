"""Calibration: its time, its choice, its prediction, and its survival of kills.

    python -m bench.calibration [matrix [CELL ...]] [seconds] [naive] [kills] [--kills N] [--parallel N] [--again]

Each part is a module of that name and says there what it measures. Without a name, all of them run, one after another.
"""
