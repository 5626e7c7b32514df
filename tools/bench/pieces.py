"""Benchmarks in parts that continue: each part adds rows to one table, and is one line of a result file.

A part that was measured with this minor version is left out of the next call, unless it is named.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

from pydantic import TypeAdapter

from tools.bench.lines import Deadline, ResultFile, add_minutes, newest_minor
from tools.bench.record import RESULTS, Cell, describe_machine, start

COLUMNS: Final = ("figure", "ours", "beside it", "bound", "")
Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The rows of a part, and their origin."""

    part: str
    rows: tuple[Row, ...]
    version: str
    at: str
    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A benchmark of several parts."""

    name: str
    """Name of the result."""
    command: str
    leaves_out: str
    parts: Mapping[str, Callable[[], Sequence[Row]]]

    def main(self, description: str | None, arguments: Sequence[str] | None = None) -> None:
        """Run the command: measure the parts that it names, and print."""
        asked = self.parser(description).parse_args(arguments)
        self.run(asked.parts, Deadline.after(asked.minutes))

    def parser(self, description: str | None) -> argparse.ArgumentParser:
        """Return the parser of a command that runs parts."""
        parser = argparse.ArgumentParser(
            prog=self.command, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        known = ["table", *self.parts]
        parser.add_argument(
            "parts", nargs="*", metavar="PART", type=_one_of(known),
            help=f"of {', '.join(self.parts)}; without any those that are missing; table: measure nothing",
        )  # fmt: skip
        add_minutes(parser)
        return parser

    def run(self, named: Sequence[str], deadline: Deadline) -> None:
        """Measure the named parts, or those that are missing; write the table of all."""
        file = ResultFile(RESULTS / f"{self.name}.jsonl", TypeAdapter(Measured))
        with file.measuring() as writer:
            made = {each.part for each in _newest(file.read().values, version("preflight-worker"))}
            for part in (part for part in named or self.parts if part in self.parts):
                if not named and part in made:
                    continue
                if deadline.is_over():
                    print("parts are left; call it again to continue")
                    break
                began = time.monotonic()
                writer.begin(part)
                rows = tuple(self.parts[part]())
                writer.append(Measured(
                    part=part, rows=rows, version=version("preflight-worker"), machine=describe_machine(),
                    at=datetime.now(UTC).isoformat(timespec="seconds"),
                ))  # fmt: skip
                print(f"({part} took {time.monotonic() - began:.0f} s)", flush=True)
        self._write(file)

    def _write(self, file: ResultFile[Measured]) -> None:
        found = file.read().values
        newest = max(found, key=lambda each: each.at, default=None)
        if newest is None:
            raise SystemExit(f"nothing was measured yet; run `{self.command}`")
        record = start(self.name, self.command, self.leaves_out)
        measured = {each.part: each for each in _newest(found, newest.version)}  # of a part the last run
        record.version, record.date = newest.version, newest.at[:10]
        record.machine = "; ".join(sorted({each.machine for each in measured.values()}))
        record.head(*COLUMNS)
        for part in self.parts:
            for row in measured[part].rows if part in measured else ((f"{part}: not measured yet", "", "", "", ""),):
                record.row(*row)
        record.write()


def _newest(found: Sequence[Measured], newest: str) -> list[Measured]:
    """Return the measurements of a minor version, in their order."""
    return [each for each in found if each.version.startswith(newest_minor([newest]))]


def _one_of(known: Sequence[str]) -> Callable[[str], str]:
    def name(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"there is no {text}; there are {', '.join(known)}")
        return text

    return name
