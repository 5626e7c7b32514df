"""The ablation of calibration: the worth of each of its mechanisms, by replaying searches on recorded steps.

    python -m tools.ablation record [FILTER ...]    measure all candidate plans of each cell once, in real containers
    python -m tools.ablation table [--seeds N]      replay searches with each mechanism off; print the table

A cell is one of the matrix (`tools.bench.calibration.matrix.cells`). Recordings are lines of
tools/bench/results/ablation.jsonl; a cell that is there is not recorded again.
"""
