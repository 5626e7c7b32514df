"""Time to an accuracy on MNIST's test set: each recipe, the plain PyTorch example, and Lightning with our network.

    python -m tools.bench.speed accuracy [--seeds N] [--recipes NAME ...] [--no-peers]

Seconds are those of training and evaluation (of ours: building the model, the epochs, the test, the artifact), the
imports apart. A recipe is one training of a fixed length; a peer is evaluated after each epoch until it is there, and
never sees a reading of its clock before that. The calibration is made once for each recipe and is printed with it.
"""

import statistics
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from preflight.contract.recipes import RECIPES, RecipeName
from tools.bench.calibration.common import format_plan, mnist
from tools.bench.record import Record, judged, samples, start
from tools.bench.speed.common import BenchOptions, as_json, ask, calibrated

TARGETS: Final[dict[RecipeName, tuple[float, float]]] = {
    "fast": (0.99, 3.0),
    "balanced": (0.995, 12.0),
    "best": (0.997, 600.0),
}
"""Recipe -> test accuracy and seconds that it has to reach."""
SEEDS: Final[dict[RecipeName, range]] = {"best": range(3, 6)}
"""Recipe -> its seeds: `best` takes minutes each, and 0 to 2 were looked at on the test set before it was changed."""
PEERS: Final = {"plain PyTorch example": "plain", "Lightning, the network of `fast`": "lightning"}
PEER_SEEDS: Final = 2
PEER_EPOCHS: Final = 6
"""Epochs after which a peer is given up."""
TIMES: Final = 40
"""How much faster `fast` has to be than the plain example."""


def main(asked: BenchOptions) -> None:
    """Measure and print."""
    record = start("accuracy", "python -m tools.bench.speed accuracy",
                   "process starts, imports and the calibration, which is made once", range(asked.seeds))  # fmt: skip
    store = str(mnist().path)
    record.head("what", "test accuracy", "mean", "seconds", "seeds there", "bound", "", "calibration, once", "plan")
    medians: dict[str, float] = {}
    for name, (target, bound) in TARGETS.items():
        if name in asked.recipes:
            medians[name] = recipe(name, target, bound, asked.seeds, store, record)
    if not asked.peers:
        record.write()
        return
    for title, peer in PEERS.items():
        target, request = TARGETS["fast"][0], dict[str, JsonValue](peer=peer, store=store, epochs=PEER_EPOCHS)
        runs = [
            ask("tools.bench.speed.peers", {**request, "target": target, "seed": seed}) for seed in range(PEER_SEEDS)
        ]
        there = [run["seconds"] for run in runs if run["accuracy"] >= TARGETS["fast"][0]]
        record.row(title, samples([run["accuracy"] for run in runs], ".2%"), "",
                   samples([run["seconds"] for run in runs], ".1f"),
            f"{len(there)} of {len(runs)}", "", "", "", "")  # fmt: skip
        medians[peer] = statistics.median(run["seconds"] for run in runs)
    if "fast" in medians:
        for title, peer in PEERS.items():
            times = medians[peer] / medians["fast"]
            verdict = f" (bound {TIMES}: {judged(times >= TIMES)})" if peer == "plain" else ""
            record.note(f"`fast` is {times:.0f} times as fast to 99.0 % as: {title}{verdict}")
    record.write()


def recipe(name: RecipeName, target: float, bound: float, seeds: int, store: str, record: Record) -> float:
    """Train a recipe with several seeds, print its row, and return the median of its seconds."""
    spec = RECIPES[name]
    choice = calibrated(spec)
    runs = []
    chosen = SEEDS.get(name, range(seeds))[:seeds]
    for seed in chosen:
        request = {**as_json(replace(spec, seed=seed), choice.plan), "store": store}
        runs.append(ask("tools.bench.speed.recipe", request, choice.plan))
    accuracies, seconds = [run["accuracy"] for run in runs], [run["seconds"] for run in runs]
    reached = statistics.median(seconds) <= bound and statistics.mean(accuracies) >= target
    record.row(f"recipe `{name}`", samples(accuracies, ".2%"), f"{statistics.mean(accuracies):.3%}",
        samples(seconds, ".2f"), f"{sum(each >= target for each in accuracies)} of {len(chosen)}",
        f"{target:.1%} in {bound:g} s", judged(reached), f"{choice.calibration_seconds:.1f} s",
        format_plan(choice.plan))  # fmt: skip
    return statistics.median(seconds)
