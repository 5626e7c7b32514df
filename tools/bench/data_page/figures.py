"""Figures of the page "Data": a line of the results for each, and the table of the newest ones."""

import statistics
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from tools.bench.lines import ResultFile, newest_minor
from tools.bench.record import judged, samples, start

COMMAND: Final = "python -m tools.bench.data_page"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A line of the results."""

    piece: str
    name: str
    values: tuple[float, ...]
    form: str
    unit: str
    bound: float
    """Bound of the median, or of the worst value where `of` is `worst`."""
    of: str
    most: bool
    """Whether the bound is an upper one."""
    size: str
    """Size of the measurement, in words."""
    version: str
    at: str
    machine: str

    @property
    def reached(self) -> bool:
        """Whether the bound is kept."""
        worst = max(self.values) if self.most else min(self.values)
        value = worst if self.of == "worst" else statistics.median(self.values)
        return value <= self.bound if self.most else value >= self.bound


FIGURE: Final = TypeAdapter(Figure)


def tabulate(file: ResultFile[Figure]) -> None:
    """Print and write the table of the newest line of each figure, of the newest minor version."""
    found = file.read()
    mine = newest_minor([each.version for each in found.values])
    newest = {(each.piece, each.name): each for each in found.values if each.version.startswith(mine)}
    record = start("data-page", COMMAND, "imports of the data sets that are shown")
    record.head("figure", "median (range)", "bound", "", "of")
    for each in newest.values():
        bound = f"{'at most' if each.most else 'at least'} {each.bound:g}{each.unit}"
        record.row(each.name, samples(each.values, each.form, each.unit), bound, judged(each.reached), each.size)
    record.note(f"Did not end: {found.lost_of(mine)}.")
    record.write()
