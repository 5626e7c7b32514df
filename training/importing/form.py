"""Options of an import, and its bounds."""

from dataclasses import dataclass
from typing import Final, Literal

Channels = Literal["auto", "gray", "rgb"]
Ink = Literal["auto", "dark", "light"]

DEFAULT_SIDE: Final = 64
"""Side in pixels up to which the most frequent size is kept; larger pictures are shrunk to it."""
MAX_SIDE: Final = 128
MAX_CLASSES: Final = 1_000
MAX_SAMPLES: Final = 2_000_000
MAX_CLASS_NAME: Final = 128
"""Most characters of a class name."""
MAX_PICTURE_BYTES: Final = 256 << 20
"""Most bytes of the file of one picture."""
SHARD: Final = 500
"""Most pictures that a child decodes as one task."""
LEAST_SHARD: Final = 20
TASKS: Final = 32
"""Tasks to aim at: few pictures may be large photographs, so each child gets some, and the progress has steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of an import, as the user gives them."""

    size: tuple[int, int] | None = None
    """Height and width; None: the most frequent size, at most `DEFAULT_SIDE`."""
    channels: Channels = "auto"
    ink: Ink = "auto"
    test: float = 0.2
    """Share of the samples without a given side that is held out for the test."""
    validation: float = 0.1
    """Share for validation of the samples that are not for the test."""
    group: str | None = None
    """Column whose equal values stay on one side of the split."""
    max_refused: float = 0.01
    """Share of refused samples above which the import ends."""
    keep_duplicates: bool = False
    """Whether training samples that are also in the test set stay."""
    format: str | None = None
    """Name of a kind of source; None: found from the content."""
