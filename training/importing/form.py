"""What an import is asked for, and its bounds."""

from dataclasses import dataclass
from typing import Final, Literal

Channels = Literal["auto", "gray", "rgb"]
Ink = Literal["auto", "dark", "light"]

DEFAULT_SIDE: Final = 64
"""Pixels: the most frequent size is kept up to this side, larger pictures are shrunk to it."""
MAX_SIDE: Final = 128
MAX_CLASSES: Final = 1_000
MAX_SAMPLES: Final = 2_000_000
MAX_CLASS_NAME: Final = 128
"""Characters."""
MAX_PICTURE_BYTES: Final = 256 << 20
"""Of the file of one picture."""
SHARD: Final = 500
"""Pictures that a child decodes as one task, at most."""
LEAST_SHARD: Final = 20
TASKS: Final = 32
"""Of few pictures, which may be large photographs, each child gets some, and the progress has steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asks of an import."""

    size: tuple[int, int] | None = None
    """Height and width; None: the most frequent size, at most `DEFAULT_SIDE`."""
    channels: Channels = "auto"
    ink: Ink = "auto"
    test: float = 0.2
    """Share of the samples without a given side that is held out for the test."""
    validation: float = 0.1
    """Share of the samples that are not for the test."""
    group: str | None = None
    """Column whose equal values stay on one side of the split."""
    max_refused: float = 0.01
    """Share of refused samples above which the import ends."""
    keep_duplicates: bool = False
    """Whether training samples that are also in the test set stay."""
    format: str | None = None
    """Name of a kind of source; None: found from the content."""
