"""Record: the tables of one benchmark, printed while it runs and written to tools/bench/results/ with every sample."""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from preflight.container.resources import detect

RESULTS: Final = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Samples:
    """A cell of measurements, printed as median and range."""

    samples: tuple[float, ...]
    form: str
    """Format specification of one figure."""
    unit: str = ""

    def __str__(self) -> str:
        """Return median (least to most)."""
        median, least, most = (
            format(each, self.form) for each in (statistics.median(self.samples), min(self.samples), max(self.samples))
        )
        return f"{median} ({least} to {most}){self.unit}" if len(self.samples) > 1 else f"{median}{self.unit}"


Cell = str | Samples


@dataclass(slots=True)
class Table:
    """A Markdown table and the lines below it."""

    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the table as Markdown."""
        head = [_line(self.columns), "|" + "---|" * len(self.columns)]
        return [*head, *map(_line, self.rows), *(["", *self.notes] if self.notes else [])]


@dataclass(slots=True)
class Record:
    """The result of one run of a benchmark."""

    benchmark: str
    command: str
    version: str
    date: str
    machine: str
    leaves_out: str = ""
    """Work that the figures do not include, such as imports and process starts."""
    seeds: tuple[int, ...] = ()
    tables: list[Table] = field(default_factory=list)

    def head(self, *columns: str) -> None:
        """Begin a table."""
        self.tables.append(Table(columns))
        print("\n".join(self.tables[-1].lines()), flush=True)

    def row(self, *cells: Cell) -> None:
        """Add a row to the last table."""
        self.tables[-1].rows.append(cells)
        print(_line(cells), flush=True)

    def note(self, text: str) -> None:
        """Add a line below the last table."""
        self.tables[-1].notes.append(text)
        print(f"\n{text}", flush=True)

    def write(self) -> None:
        """Write the JSON file; `make figures` copies it into the pages."""
        RESULTS.mkdir(exist_ok=True)
        lines = RECORD.dump_json(self).replace(b"],[", b"],\n[")  # a line for each row
        (RESULTS / f"{self.benchmark}.json").write_bytes(lines + b"\n")


RECORD: Final = TypeAdapter(Record)


def start(benchmark: str, command: str, leaves_out: str = "", seeds: Sequence[int] = ()) -> Record:
    """Begin a run on this machine today."""
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    record = Record(benchmark, command, version("preflight-worker"), date, describe_machine(), leaves_out, tuple(seeds))
    print(f"{record.version}, {date}, {record.machine}\n", flush=True)
    return record


def load(benchmark: str) -> Record:
    """Read the last result of a benchmark."""
    return RECORD.validate_json((RESULTS / f"{benchmark}.json").read_bytes())


def samples(values: Sequence[float], form: str, unit: str = "") -> Samples:
    """Return a cell of measurements."""
    return Samples(tuple(values), form, unit)


def judged(reached: bool) -> str:
    """Return the verdict on a bound."""
    return "reached" if reached else "missed"


def describe_machine() -> str:
    """Return processor, cores, memory and versions in one line."""
    resources = detect()
    model = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), "an unnamed processor")  # fmt: skip
    return (
        f"{len(resources.affinity)} vCPUs of {model}, {resources.memory_bytes / 2**30:.1f} GiB, "
        f"torch {version('torch')}, Python {sys.version_info.major}.{sys.version_info.minor}"
    )


def _line(cells: Sequence[Cell]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
