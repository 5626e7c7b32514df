"""The matrix: calibration's promises in every container that can be bought, from real cgroups.

    python -m tools.bench.calibration matrix [FILTER ...] [--again]

A cell is a number of processors, a memory limit and a model; its name is `0.5cpu-cnn-1g`. A filter is a part of names:
`0.5cpu`, `cnn-1g`, `busy` (one busy neighbour), `quiet`. In each cell one epoch is trained as `preflight train` does,
with calibration and without; then the chosen plan is measured beside a grid. Each cell is appended to
tools/bench/results/calibration-matrix.jsonl as it ends: an interrupted run continues, `--again` measures all anew.
"""
