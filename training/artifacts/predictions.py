"""Probabilities of each test sample, stored next to the model in `predictions.safetensors`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

PREDICTIONS: Final = "predictions.safetensors"
MOST: Final = 16 << 20
"""Most probabilities of a file; those of a larger test set would take more than 64 MiB and are not kept."""


def prediction_bytes(samples: int, classes: int) -> int:
    """Return the bytes that the file will have, without its header; 0 where none is kept."""
    return samples * (4 * classes + 1) if samples * classes <= MOST else 0


def allocate_probabilities(samples: int, classes: int) -> Tensor | None:
    """Return float32 [samples, classes] to be filled; None where that would be more than `MOST`."""
    import torch

    return torch.zeros(samples, classes) if samples * classes <= MOST else None


def serialize(probabilities: Tensor, labels: Tensor) -> bytes:
    """Return the file of probabilities float32 [N, classes] and true labels uint8 [N]."""
    from safetensors.torch import save

    return save({"probabilities": probabilities, "labels": labels})


def read(path: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Return probabilities [N, classes] and true labels [N]; without torch.

    Raises:
        OSError: there is no such file.
    """
    from safetensors.numpy import load_file

    tensors = load_file(path)
    return tensors["probabilities"], tensors["labels"]
