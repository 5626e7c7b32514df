"""What ranks exchange in a step, between real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import JsonValue

TESTS = Path(__file__).parents[3]


def exchanged(*words: str) -> dict[str, dict[str, JsonValue]]:
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    run = subprocess.run(
        [sys.executable, "-m", "support.groups.exchanging", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, dict[str, JsonValue]] = json.loads(run.stdout)
    return told


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("ranks", "wire", "waits", "precision"), [
    (2, "float32", "polls", 1e-5), (3, "bfloat16", "sleeps", 1e-2),
])  # fmt: skip
def test_ranks_have_the_gradients_and_figures_of_the_whole_batch(
    ranks: int, wire: str, waits: str, precision: float
) -> None:
    """In each step; work that takes longer than to tell its result is done once."""
    told = exchanged(str(ranks), wire, waits)
    steps, alone = told["gradients"]["steps"], told["gradients"]["alone"]
    assert isinstance(steps, list)
    assert len(steps) == 3
    assert steps == [pytest.approx(alone, rel=precision)] * 3
    squares = [[float(number**2)] * 2 for number in range(4)]
    assert told["cheap"] == {"found": squares, "done": 4}
    assert told["dear"] == {"found": squares, "done": 2}
