"""Models that need much memory: one while it trains, one while it is evaluated, registered as a user's own."""

from typing import Final

import torch
from torch import Tensor, nn

MEBIBYTES: Final = 64
"""MiB needed for each sample of a micro-batch."""
ENTRY_POINTS: Final = """
[preflight.models]
hungry-in-training = tools.faults.hungry:in_training
hungry-in-evaluation = tools.faults.hungry:in_evaluation
"""


class Hungry(nn.Module):
    """A linear model that fills memory in one of its two modes."""

    def __init__(self, inputs: int, classes: int, *, in_training: bool) -> None:
        super().__init__()
        self._in_training = in_training
        self._linear = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        waste = torch.ones(len(images) * MEBIBYTES << 18) if self.training == self._in_training else torch.ones(1)
        logits: Tensor = self._linear(images.flatten(1)) * waste[-1]
        return logits


def in_training(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a model that needs memory while it trains."""
    return Hungry(shape[0] * shape[1] * shape[2], classes, in_training=True)


def in_evaluation(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a model that needs memory while it is evaluated."""
    return Hungry(shape[0] * shape[1] * shape[2], classes, in_training=False)
