"""What the container grants and what others use of it: cgroups, quotas, counters, clocks.

Imports in this package, in `tuner` and in `statistics` are relative: `preflight run` loads them in other people's
processes under another name (`launch.site`).
"""
