"""Time to an accuracy on MNIST's test set: each recipe, and next to `fast` what others take.

    PYTHONPATH=tests python -m tools.bench.speed.accuracy [PART ...] [--minutes N]

Seconds are those of training and evaluation (of ours: building the model, the epochs, the test, the artifact), the
imports apart. A recipe is one training of a fixed length; calibration is made once for each and is printed with it.
`example` (the plain PyTorch example) and `lightning` (our network in a Trainer) take turns with `fast`; both are
evaluated after each epoch until they are there, and never see a reading of their clock before that. `best` takes half
an hour, the others ten minutes.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Final, Literal

from pydantic import JsonValue

from calibration.choose import PlanChoice
from preflight.contract.recipes import RECIPES, RecipeName
from tools.bench.calibration.common import format_plan, mnist
from tools.bench.pieces import Bench, Row
from tools.bench.record import judged, samples
from tools.bench.speed.common import as_json, ask, calibrated

TARGETS: Final[dict[RecipeName, tuple[float, float]]] = {
    "fast": (0.99, 3.0),
    "balanced": (0.995, 12.0),
    "best": (0.997, 600.0),
}
"""Recipe -> test accuracy and seconds that it has to reach."""
SEEDS: Final[dict[RecipeName, Sequence[int]]] = {"fast": range(5), "balanced": range(5), "best": range(3, 6)}
"""Recipe -> its seeds: `best` takes minutes each, and 0 to 2 were looked at on the test set before it was changed."""
PEER_SEEDS: Final = range(2)
PEER_EPOCHS: Final = 6
"""Epochs after which a peer is given up."""
TIMES: Final = 40
"""How much faster `fast` has to be than the plain example."""


def recipe(name: RecipeName) -> list[Row]:
    """Return the row of a recipe."""
    target, bound = TARGETS[name]
    seeds = SEEDS[name]
    runs = [_train(name, seed) for seed in seeds]
    accuracies, seconds = [run["accuracy"] for run in runs], [run["seconds"] for run in runs]
    there = sum(each >= target for each in accuracies)
    reached = statistics.median(seconds) <= bound and statistics.mean(accuracies) >= target
    choice = _calibrated(name)
    return [
        (f"recipe `{name}`, seconds", samples(seconds, ".2f"), f"{format_plan(choice.plan)}; calibrated in "
         f"{choice.calibration_seconds:.1f} s", f"{bound:g} s", judged(statistics.median(seconds) <= bound)),
        (f"recipe `{name}`, test accuracy", samples(accuracies, ".2%"),
         f"mean {statistics.mean(accuracies):.3%}; {there} of {len(seeds)} seeds there", f"mean {target:.1%}",
         judged(reached)),
    ]  # fmt: skip


def beside(title: str, peer: Literal["plain", "lightning"], bound: int | None = None) -> list[Row]:
    """Return the row of `fast` next to what others take to its accuracy, in turns."""
    target = TARGETS["fast"][0]
    request = dict[str, JsonValue](peer=peer, store=str(mnist().path), epochs=PEER_EPOCHS, target=target)
    pairs = [(ask("tools.bench.speed.peers", {**request, "seed": seed}), _train("fast", seed)) for seed in PEER_SEEDS]
    ratios = [theirs["seconds"] / ours["seconds"] for theirs, ours in pairs]
    there = sum(theirs["accuracy"] >= target for theirs, _ in pairs)
    times = samples(ratios, ".0f")
    return [(
        f"seconds to {target:.1%}, `fast` and {title}", samples([ours["seconds"] for _, ours in pairs], ".2f"),
        f"{samples([theirs['seconds'] for theirs, _ in pairs], '.1f')}; {there} of {len(pairs)} there",
        f"{times} times" if bound is None else f"{times} times, at least {bound}",
        "" if bound is None else judged(statistics.median(ratios) >= bound),
    )]  # fmt: skip


def _train(name: RecipeName, seed: int) -> dict[str, float]:
    plan = _calibrated(name).plan
    spec = replace(RECIPES[name], seed=seed)
    return ask("tools.bench.speed.recipe", {**as_json(spec, plan), "store": str(mnist().path)}, plan)


@cache
def _calibrated(name: RecipeName) -> PlanChoice:
    return calibrated(RECIPES[name])


BENCH: Final = Bench(
    name="accuracy", command="python -m tools.bench.speed.accuracy",
    leaves_out="process starts, imports and the calibration, which is made once",
    parts={
        "fast": partial(recipe, "fast"), "balanced": partial(recipe, "balanced"), "best": partial(recipe, "best"),
        "example": partial(beside, "the plain PyTorch example", "plain", TIMES),
        "lightning": partial(beside, "Lightning with its network", "lightning"),
    },
)  # fmt: skip

if __name__ == "__main__":
    BENCH.main(__doc__)
