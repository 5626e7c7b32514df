"""Ask with one command of Redis which of several keys exist, so that an idle worker need not ask for each."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyExistence:
    """The keys of one EXISTS, which counts a key as often as it is named.

    The keys in `single` are distinguished: each is named more often than all that follow it together.
    """

    single: Sequence[str]
    others: Sequence[str]

    @property
    def names(self) -> Sequence[str]:
        """Arguments of EXISTS."""
        return [*(key for key, weight in zip(self.single, self._weights, strict=True) for _ in range(weight)),
                *self.others]  # fmt: skip

    def read(self, count: int) -> tuple[Sequence[bool], int]:
        """Return which of `single` exist, and how many of `others`, from the answer of EXISTS."""
        found = []
        for weight in self._weights:
            exists, count = divmod(count, weight)
            found.append(exists > 0)
        return found, count

    @property
    def _weights(self) -> Sequence[int]:
        lowest = len(self.others) + 1
        return [lowest << power for power in reversed(range(len(self.single)))]
