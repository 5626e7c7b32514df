"""Progress of a decoding child: for the time limit of its parent, and for the samples that it leaves out."""

from collections.abc import Callable, Mapping


class Progress:
    """Counts the samples of one task, and keeps those that are refused."""

    def __init__(self, show: Callable[[int], None], skip: Mapping[int, str]) -> None:
        self._show = show
        self._skip = skip
        self.refused: list[tuple[int, str]] = []
        self.at = 0
        """Samples that were begun."""

    def begins(self, item: int) -> bool:
        """Note that a sample begins; return False for one that is left out, as it ended a child before."""
        self._show(item)
        self.at = item + 1
        if item in self._skip:
            self.refuse(item, self._skip[item])
            return False
        return True

    def refuse(self, item: int, why: str) -> None:
        """Leave a sample out."""
        self.refused.append((item, why))
