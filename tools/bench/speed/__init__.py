"""How fast training is, beside its peers and the machine's limits; every table comes from one run.

`make bench-speed`, or `python -m tools.bench.speed [part ...]`.
"""
