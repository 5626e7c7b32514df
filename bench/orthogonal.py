"""What Muon's orthogonalisation costs in each recipe's step, beside the iteration as it is published.

    python -m bench.orthogonal

The published iteration multiplies the whole matrix in each round (Jordan et al. 2024), there in bfloat16.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from bench.tables import head, row, spread
from training.config.recipes import RECIPES
from training.models.cnn import build, networks_of
from training.optim.muon import as_published, hidden_matrices, orthogonal

ROUNDS: Final = 9
TIMES: Final = 10
"""In each round."""


WAYS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "here": orthogonal,
    "here, with bfloat16": partial(orthogonal, dtype=torch.bfloat16),
    "published, float32": partial(as_published, dtype=torch.float32),
    "published, bfloat16": partial(as_published, dtype=torch.bfloat16),
}


def main() -> None:
    """Measure and print."""
    head("recipe", "way", "milliseconds a step", "farthest from float64, relative")
    for name, spec in RECIPES.items():
        if spec.optimizer != "muon":
            continue
        torch.manual_seed(0)
        model = build(spec.model, (1, 28, 28), 10)
        hidden = hidden_matrices(list(model.parameters()), networks_of(model))
        matrices = [torch.randn_like(each).flatten(1) for each in hidden]
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(ROUNDS):
            for way, do in WAYS.items():
                seconds[way].append(timed(do, matrices))
        for way, do in WAYS.items():
            error = max(_error(do(each), as_published(each.double(), torch.float64)) for each in matrices)
            row(f"`{name}`", way, spread([1000 * each for each in seconds[way]], ".2f"), f"{error:.0e}")


def timed(do: Callable[[Tensor], Tensor], matrices: Sequence[Tensor]) -> float:
    """Return the seconds that all matrices together take, warm."""
    for each in matrices:
        do(each)
    began = time.perf_counter()
    for _ in range(TIMES):
        for each in matrices:
            do(each)
    return (time.perf_counter() - began) / TIMES


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


if __name__ == "__main__":
    main()
