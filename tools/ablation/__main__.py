"""The command: record cells, print the table of each mechanism's worth, confirm what stays by real pairs."""

import argparse
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from calibration.task import Task
from tools.ablation.mechanisms import MECHANISMS, Mechanism, together
from tools.ablation.pairs import measure as measure_pairs
from tools.ablation.record import MANY_THREADS, record
from tools.ablation.recording import Recording, load
from tools.ablation.replay import epoch_seconds, replayed, task_of
from tools.bench.lines import Deadline, add_minutes
from tools.bench.record import Record, start

EPOCHS: Final = {"short": 1, "long": 30}
"""Kind of training -> its epochs; an epoch takes some 20 s under a good plan."""
COUNTS: Final = 0.02
"""Share of training plus calibration from which on a mechanism earns its keep."""


@dataclass(frozen=True, slots=True)
class Score:
    """The mean of some searches."""

    total_s: float
    """Seconds of calibration and training."""
    deviation: float
    """Mean of the absolute logarithm of predicted by true seconds of an epoch."""


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.ablation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record").add_argument("filters", nargs="*")
    commands.add_parser("table").add_argument("--seeds", type=int, default=20)
    real = commands.add_parser("pairs")
    real.add_argument("checkout", type=Path, help="of the former version, installed into its .venv")
    real.add_argument("--pairs", type=int, default=5, help="of each cell, those of earlier calls included")
    add_minutes(real)
    asked = parser.parse_args()
    if asked.command == "record":
        record(asked.filters)
    elif asked.command == "pairs":
        measure_pairs(asked.checkout, asked.pairs, Deadline.after(asked.minutes))
    else:
        table(asked.seeds)


def table(seeds: int) -> None:
    """Print and write the cost of turning each mechanism off: the median of all cells, and the most."""
    recordings = load()
    if not recordings:
        raise SystemExit("no cell is recorded; run `python -m tools.ablation record`")
    result = start("ablation", "python -m tools.ablation table", "nothing: times are those of the recordings")
    result.head("without", "what it does", "median", "most", "in the cell", "prediction off by", "verdict")
    whole = _scores(recordings, None, seeds)
    going = []
    for name, mechanism in MECHANISMS.items():
        most = _add_row(result, name, mechanism, whole, _scores(recordings, mechanism, seeds))
        going += [mechanism] if most < COUNTS and not mechanism.stays else []
    if going:
        _add_row(result, "these", together(going), whole, _scores(recordings, together(going), seeds))
    result.write()


def _add_row(
    result: Record, name: str, mechanism: Mechanism, whole: Mapping[str, Score], off: Mapping[str, Score]
) -> float:
    """Add the row of a mechanism; return the most that turning it off costs in a cell."""
    costs = {cell: off[cell].total_s / whole[cell].total_s - 1 for cell in whole}
    worst = max(costs, key=lambda cell: costs[cell])
    deviations = [statistics.fmean(score.deviation for score in scores.values()) for scores in (whole, off)]
    verdict = "stays" if costs[worst] >= COUNTS else f"stays: {mechanism.stays}" if mechanism.stays else "goes"
    result.row(
        name, mechanism.what, f"{statistics.median(costs.values()):+.1%}", f"{costs[worst]:+.1%}", worst,
        f"{deviations[1]:.1%} ({deviations[0]:.1%} with it)", verdict,
    )  # fmt: skip
    return costs[worst]


def _scores(recordings: Sequence[Recording], without: Mechanism | None, seeds: int) -> dict[str, Score]:
    """Return the score of each cell: short and long trainings, with the container's default and far more threads."""
    scores = {}
    with without.turned_off() if without else nullcontext():
        for recording in recordings:
            own = recording.plans[0].plan
            for (kind, epochs), threads in itertools.product(EPOCHS.items(), (own.threads, MANY_THREADS)):
                task = task_of(recording, epochs, replace(own, threads=threads))
                name = f"{recording.cell}, {kind}{'' if threads == own.threads else f', {threads} threads asked'}"
                scores[name] = _score(recording, task, seeds)
    return scores


def _score(recording: Recording, task: Task, seeds: int) -> Score:
    totals, deviations = [], []
    for seed in range(seeds):
        result = replayed(recording, task, seed)
        true_s = epoch_seconds(recording, result.plan)
        totals.append(result.calibration_seconds + task.epochs * true_s)
        deviations.append(abs(math.log(result.prediction.epoch_s / true_s)))
    return Score(statistics.fmean(totals), statistics.fmean(deviations))


if __name__ == "__main__":
    main()
