"""Form of the pictures of a data set, and of those that its models read."""

from dataclasses import dataclass
from typing import Final

MAX_PIXELS: Final = 50_000_000
"""Most pixels of a picture that is decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of all pictures of a data set: fixed before the first one is decoded."""

    height: int
    width: int
    channels: int
    """Number of channels: 1 or 3."""
    invert: bool
    """Whether dark and light change places, so that 0 is background."""

    @property
    def bytes(self) -> int:
        """Bytes of one picture."""
        return self.channels * self.height * self.width
