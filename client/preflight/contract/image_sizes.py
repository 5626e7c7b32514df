"""The smallest images that the networks of this project take; torch-free."""

from collections.abc import Mapping
from typing import Final

from preflight.contract.recipes import NETWORKS
from preflight.errors import InvalidConfig

LEAST_SIDES: Final[Mapping[str, int]] = {"cnn": 6, **dict.fromkeys(NETWORKS, 28)}
"""Network -> pixels of an image's shorter side, below which its layers would shrink it to nothing."""


def require_image_size(model: str, shape: tuple[int, int, int]) -> None:
    """Raise `InvalidConfig` for images (channels, height, width) that a network of this project does not take."""
    least, (_, height, width) = LEAST_SIDES.get(model, 1), shape
    if min(height, width) < least:
        others = "'cnn' or 'resnet18' instead of the recipe" if model in NETWORKS else "'resnet18'"
        raise InvalidConfig(
            f"model {model!r} needs images of at least {least}x{least}, but these are {height}x{width}; use {others}",
            field="model",
        )
