"""The form that the pictures of a data set get, and of those that a model of it reads."""

from dataclasses import dataclass
from typing import Final

MAX_PIXELS: Final = 50_000_000
"""Of a picture that is decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of all pictures of a data set: fixed before the first one is decoded."""

    height: int
    width: int
    channels: int
    """1 or 3."""
    invert: bool
    """Whether dark and light change places, so that 0 is background."""

    @property
    def bytes(self) -> int:
        """Bytes of one picture."""
        return self.channels * self.height * self.width
