"""Speed of training, compared with its peers and the machine's limits; every table comes from one run.

`python -m tools.bench.speed [part ...]`.
"""
