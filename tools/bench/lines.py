"""Result files of long benchmarks: a line of JSON for each run, so that an interrupted benchmark continues.

What is left out of a table is decided here, before anything runs: only a run that did not end. Before each run stands a
line that it has begun; one without a result behind it was killed or interrupted, or its line was torn, and is counted.
"""

import fcntl
import os
import signal
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, Generic, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

Value = TypeVar("Value")
BEGUN: Final = b'{"begun":'


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A run that has begun."""

    begun: str
    """Name of the run."""
    version: str
    at: str


@dataclass(frozen=True, slots=True)
class Results(Generic[Value]):
    """Content of a result file."""

    values: list[Value] = field(default_factory=list)
    lost: list[Begun | None] = field(default_factory=list)
    """Runs that did not end; None for a torn line that does not say which."""

    def lost_of(self, version: str) -> int:
        """Return how many runs of a version did not end, torn lines included."""
        return sum(each is None or each.version.startswith(version) for each in self.lost)


class ResultFile(Generic[Value]):
    """A file of results; one process measures at a time, any number read."""

    def __init__(self, path: Path, kind: TypeAdapter[Value]) -> None:
        """Use `path`; it is made by the first measurement."""
        self._path, self._kind = path, kind

    def read(self) -> Results[Value]:
        """Return all results in their order, and the runs without one."""
        found: Results[Value] = Results()
        begun: Begun | None = None
        for line in self._path.read_bytes().splitlines() if self._path.exists() else ():
            try:
                if line.startswith(BEGUN):
                    later = LINE.validate_json(line)
                    found.lost.extend([begun] if begun else [])
                    begun = later
                elif line.strip():
                    found.values.append(self._kind.validate_json(line))
                    begun = None
            except ValidationError:
                found.lost.append(begun)
                begun = None
        found.lost.extend([begun] if begun else [])
        return found

    @contextmanager
    def measuring(self) -> Iterator["Writer[Value]"]:
        """Let no other process measure into files of this directory: two at once would slow each other.

        SIGTERM ends it as Ctrl-C does: what it has started ends with it.

        Raises:
            SystemExit: another process measures.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(directory)
            raise SystemExit(
                f"another benchmark measures into {self._path.parent}; wait until it ends, then run this again"
            ) from None
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            yield Writer(self._path, self._kind)
        finally:
            signal.signal(signal.SIGTERM, before)
            os.close(directory)


class Writer(Generic[Value]):
    """Appends to a result file."""

    def __init__(self, path: Path, kind: TypeAdapter[Value]) -> None:
        self._path, self._kind = path, kind

    def begin(self, name: str) -> None:
        """Note that a run begins."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self._append(LINE.dump_json(Begun(begun=name, version=version("preflight-worker"), at=at)))

    def append(self, value: Value) -> None:
        """Add the result of the run that has begun."""
        self._append(self._kind.dump_json(value))

    def _append(self, line: bytes) -> None:
        """Add a line, behind the rest that a kill has left of the one before."""
        with self._path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line + b"\n")


LINE: Final = TypeAdapter(Begun)


def newest_minor(versions: list[str]) -> str:
    """Return the prefix of the newest of some versions: `0.28.` of 0.27.3, 0.28.0 and 0.28.1; empty for none."""
    newest = max(versions, key=lambda each: tuple(map(int, each.split("."))), default="")
    return f"{newest.rpartition('.')[0]}." if newest else ""


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time after which a benchmark begins nothing, on the monotonic clock, which nobody sets."""

    at: float

    @classmethod
    def after(cls, minutes: float) -> Self:
        """Return the deadline in `minutes` from now."""
        return cls(time.monotonic() + 60 * minutes)

    def is_over(self, seconds: float = 0.0) -> bool:
        """Whether it will be over in `seconds` from now."""
        return time.monotonic() + seconds >= self.at

    def minutes_left(self) -> float:
        """Return the minutes until then, at least 0."""
        return max(0.0, self.at - time.monotonic()) / 60


def add_minutes(parser: ArgumentParser) -> None:
    """Add the option for how many minutes a command may begin something."""
    parser.add_argument("--minutes", type=float, default=10_000.0, help="begin nothing after so many; call it again")
