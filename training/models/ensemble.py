"""Ensembles: the mean logits of several networks, or of one for several shifts of an image, are the output."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SHIFTS: Final = ((0, 0), (0, 0), (-1, -1), (1, 1))
"""Shifts, in pixels down and right, whose mean a `ShiftAverage` takes; the image itself counts twice."""


class Ensemble(nn.Module):
    """Networks of one architecture with different initial weights.

    In training each network learns from its share of the batch, so all of them cost as much as one. They err on
    different samples, and their mean errs less often than each of them.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, classes]; with fewer than two samples per member, each member sees all of them."""
        if self.training and len(images) >= 2 * len(self.members):
            shares = images.tensor_split(len(self.members))
            return torch.cat([member(share) for member, share in zip(self.members, shares, strict=True)])
        return torch.stack([member(images) for member in self.members]).mean(0)


class ShiftAverage(nn.Module):
    """A network that answers with its mean logits for an image and two shifts of it, once it is trained.

    It errs less often, most of all behind a stem with a stride, for which a shifted image has other pixels. Training
    costs as much as that of the network alone.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, classes]; pixels beyond an edge are those at the edge."""
        if self.training:
            logits: Tensor = self.network(images)
            return logits
        height, width = images.shape[2:]
        padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
        views = {(down, right): padded[:, :, 1 - down :, 1 - right :][:, :, :height, :width] for down, right in SHIFTS}
        seen = {shift: self.network(view) for shift, view in views.items()}
        return torch.stack([seen[shift] for shift in SHIFTS]).mean(0)


def ensemble_size(model: nn.Module) -> int:
    """Return the number of networks in a model."""
    return len(model.members) if isinstance(model, Ensemble) else 1
