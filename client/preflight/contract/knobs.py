"""Annotations of a plan's fields: their words, and the values that calibration may try."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

CAUTIOUS_CHANCE: Final = 0.2
CAUTIOUS_GAIN: Final = 1.05
"""Probability and gain of a change that nobody has measured."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Words:
    """How people read a value of the field."""

    text: str = "{}"
    """Text of a value, which takes the place of `{}`."""
    texts: Mapping[object, str] = field(default_factory=dict)
    """Value -> its text, where `text` does not fit."""
    always: bool = False
    """Whether the line of a plan, and an event, has the field where it holds its default, too."""

    def of(self, value: object) -> str:
        """Return a value in words."""
        return self.texts.get(value) or self.text.format(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A part of the plan that calibration decides by itself: a field, or several that change together."""

    name: str | None = None
    """Name of the knob; None: that of the field. Fields with the same name change together."""
    tries: tuple[object, ...] = ()
    """Values to try, where no function in `calibration.search.mutations` chooses them from the known facts."""
    chance: float = CAUTIOUS_CHANCE
    """Probability that a value to try wins, before one was measured; `calibration.worth.priors` has others by kind."""
    gain: float = CAUTIOUS_GAIN
    """Ratio of the speed with the value to that without, if it wins."""
    needed: bool = False
    """Whether a search without it is incomplete."""
    portable: bool = True
    """Whether the container's default replaces the user's value; batches are a matter of model and memory."""
