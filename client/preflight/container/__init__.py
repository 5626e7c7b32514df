"""Limits of the container and its use by others: cgroups, quotas, counters, clocks.

Imports in this package, in `tuner` and in `statistics` are relative: `preflight run` loads them in other people's
processes under another name (`launch.site`).
"""
