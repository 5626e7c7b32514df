"""The recipes beside those of 0.13.0, pair by pair in turns: time and accuracy on MNIST's test set.

    python -m bench.speed recipes [--seeds N] [--recipes NAME ...]

A pair is one training of each with the same seed, each under its own calibrated plan, the one that begins changing from
pair to pair. Seconds as in `accuracy`. The seeds are those that no recipe was looked at with before.
"""

import statistics
from dataclasses import replace
from typing import Final

from bench.calibration.common import format_plan, mnist
from bench.record import Record, judged, samples, start
from bench.speed.common import BenchOptions, as_json, ask, calibrated
from preflight.contract.plan import Plan
from preflight.contract.recipes import RECIPES, RecipeName
from preflight.contract.spec import Augmentation, TrainSpec

_SLOWER: Final = TrainSpec(
    dataset="mnist", model="cnn-committee", batch_size=512, optimizer="muon", learning_rate=0.02, momentum=0.95,
    label_smoothing=0.1, validation_samples=0, augmentation=Augmentation(rotate_degrees=10, translate=0.1),
)  # fmt: skip
FORMER: Final[dict[RecipeName, TrainSpec]] = {
    "fast": TrainSpec(
        dataset="mnist", model="cnn-small-valid", batch_size=320, learning_rate=0.03, label_smoothing=0.1,
        validation_samples=0,
    ),
    "balanced": replace(
        _SLOWER, model="cnn-valid", epochs=2, batch_size=192,
        augmentation=Augmentation(rotate_degrees=7, translate=0.07),
    ),
    "best": replace(_SLOWER, epochs=40, augmentation=replace(_SLOWER.augmentation, scale=0.1)),
}  # fmt: skip
"""As 0.13.0 had them."""
BOUNDS: Final[dict[RecipeName, tuple[float, float]]] = {
    "fast": (0.99, 0.70), "balanced": (0.995, 0.75), "best": (0.9976, 1.0),
}  # fmt: skip
"""Test accuracy that each training has to reach, of `best` their mean; and its share of the former's time."""
FIRST_SEED: Final = 10


def main(asked: BenchOptions) -> None:
    """Measure and print."""
    seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
    record = start("recipes-former", "python -m bench.speed recipes",
                   "process starts, imports and calibrations", seeds)  # fmt: skip
    record.head("recipe", "seconds, 0.13.0", "now", "now / 0.13.0", "bound", "", "test accuracy, 0.13.0", "now", "mean",
                "seeds there", "bound", "", "plans")  # fmt: skip
    for name in RECIPES:
        if name in asked.recipes:
            compare(name, seeds, record)
    record.write()


def compare(name: RecipeName, seeds: range, record: Record) -> None:
    """Train both recipes with each seed, and print a row."""
    specs = {"former": FORMER[name], "now": RECIPES[name]}
    plans = {which: calibrated(spec).plan for which, spec in specs.items()}
    runs: dict[str, list[dict[str, float]]] = {which: [] for which in specs}
    for seed in seeds:
        for which in sorted(specs, reverse=bool(seed % 2)):
            runs[which].append(train(replace(specs[which], seed=seed), plans[which]))
    seconds, accuracies = (
        {which: [run[figure] for run in each] for which, each in runs.items()} for figure in ("seconds", "accuracy")
    )
    ratios = [now / former for now, former in zip(seconds["now"], seconds["former"], strict=True)]
    least, most = BOUNDS[name]
    there, mean = sum(each >= least for each in accuracies["now"]), statistics.mean(accuracies["now"])
    reached = mean >= least if name == "best" else there == len(seeds)
    record.row(
        f"`{name}`", *(samples(seconds[which], ".2f") for which in specs), samples(ratios, ".3f"), f"{most:.2f}",
        judged(statistics.median(ratios) <= most), *(samples(accuracies[which], ".2%") for which in specs),
        f"{mean:.3%}", f"{there} of {len(seeds)}", f"{least:.2%}", judged(reached),
        "; ".join(dict.fromkeys(format_plan(plan) for plan in plans.values())),
    )  # fmt: skip


def train(spec: TrainSpec, plan: Plan) -> dict[str, float]:
    """Train in a process of its own and return seconds and test accuracy."""
    return ask("bench.speed.recipe", {**as_json(spec, plan), "store": str(mnist().path)}, plan)
