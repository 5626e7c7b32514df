"""The matrix: calibration's promises in every container that can be bought, from real cgroups.

    python -m tools.bench.calibration [FILTER ...] [--runs N] [--minutes N]

A cell is a number of processors, a memory limit and a model; its name is `0.5cpu-cnn-1g`. A filter is a part of names:
`0.5cpu`, `cnn-1g`, `busy` (one busy neighbour), `quiet`. In a run one epoch is trained as `preflight train` does, with
calibration and without; the chosen plan is compared with a grid. Each run is appended to
tools/bench/results/calibration-matrix.jsonl as it ends: an interrupted run continues. Every run of a version counts,
whatever the machine did; `--runs 5` makes five of each cell that is asked for.
"""
