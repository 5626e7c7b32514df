"""A model in memory: how it reads a picture, and its probabilities for an image."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.errors import InvalidConfig
from preflight.pictures.as_trained import read_as_trained
from preflight.pictures.form import Form
from preflight.pictures.reading import Picture, Reading, read_as_imported, read_colour_picture, read_drawing, read_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class Model:
    """A model that is ready to recognize images."""

    shape: tuple[int, int, int]
    """Channels, 1 or 3, height and width of an image."""
    filled: float
    names: tuple[str, ...]
    """Names of the classes."""
    inverted: bool | None
    """Whether pictures are inverted, as `ModelInput` has it; None: they are not read as those of an import."""
    uncertain_below: float | None
    """Probability below which an answer is uncertain; None: not measured."""
    recognize: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]
    """Takes images [N, C, H, W], returns probabilities [N, classes]."""

    @cached_property
    def quoted(self) -> tuple[str, ...]:
        """The names of the classes as JSON."""
        return tuple(json.dumps(name) for name in self.names)

    @cached_property
    def _reads_digits(self) -> bool:
        return sorted(self.names) == [*"0123456789"]

    def is_uncertain(self, probability: float, reading: Reading) -> bool | None:
        """Whether an answer is uncertain: by its probability, or since several digits are in the picture.

        Returns:
            None where the model's threshold was not measured.
        """
        if self._reads_digits and reading.strokes is not None and reading.strokes.drawings > 1:
            return True
        return None if self.uncertain_below is None else bool(probability < self.uncertain_below)

    def read(self, path: Path | Picture, most_pixels: int) -> Reading:
        """Return the picture at `path` as the model takes it; raises `InvalidConfig`."""
        channels, height, width = self.shape
        if self.inverted is not None:
            form = Form(height=height, width=width, channels=channels, invert=self.inverted)
            return Reading(read_as_imported(path, form, most_pixels))
        if channels == 1:
            known = read_as_trained(read_file(path), height, width, self.filled)
            if known is not None:
                return Reading(known[None])
            return read_drawing(path, height, width, self.filled, most_pixels=most_pixels)
        return Reading(read_colour_picture(path, height, width, most_pixels=most_pixels))


def as_pictured(path: Path, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the shape of a model's images; raises `InvalidConfig` for those that no picture can be made into."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise InvalidConfig(
            f"the model in {path} reads images of {channels} channels, but pictures are grey, their ink, or in colour; "
            "name a model of images with 1 or 3 channels",
            field="model",
        )
    return channels, height, width
