"""The fault suite: what happens to jobs when processes, Redis, memory, disks, clocks and messages go wrong.

`python -m tools.faults` prints a table. Everything in it is real: redis-server with an append-only file, worker
processes, SIGKILL, cgroups, full file systems. Stock RQ goes through the same faults with `--stock`.
"""
