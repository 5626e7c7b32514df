"""Ensembles: several networks whose mean logits are the output."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


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


def ensemble_size(model: nn.Module) -> int:
    """Return the number of networks in a model."""
    return len(model.members) if isinstance(model, Ensemble) else 1
