"""A model whose memory grows with the square of its micro-batch, so that a line through two sizes promises too much.

A user's own, by an entry point.
"""

from typing import Final

import torch
from torch import Tensor, nn

PAIR_BYTES: Final = 20 << 10
"""Needed for each pair of samples: 8 of them take 1 MiB, 32 take 20, which promises 95 for 128; they take 320."""
FLOAT_BYTES: Final = 4
NAME: Final = "greedy"
ENTRY_POINTS: Final = f"""
[preflight.models]
{NAME} = bench.calibration.greedy:greedy
"""


class Greedy(nn.Module):
    """A linear model that fills memory while it trains."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self._linear = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        pairs = len(images) ** 2 if self.training else 1
        waste = torch.ones(pairs * PAIR_BYTES // FLOAT_BYTES)
        logits: Tensor = self._linear(images.flatten(1)) * waste[-1]
        return logits


def greedy(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return the model."""
    return Greedy(shape[0] * shape[1] * shape[2], classes)
