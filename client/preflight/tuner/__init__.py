"""Tuning of any PyTorch training while it runs: its own optimizer steps are the measurement.

`laps` times steps, `race` compares two settings in turns, `tuning` decides what to race and when, `settings` applies
what was decided, `hook` joins them to a training. Only the standard library and torch are needed.
"""
