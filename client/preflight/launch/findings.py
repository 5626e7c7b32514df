"""Findings of the processes of a command, as they left them in its folder."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from preflight.launch.nested import NESTED
from preflight.tuner.journal import Record, read_records
from preflight.tuner.settings import Malloc, Settings

Value = object


@dataclass(frozen=True, slots=True)
class Process:
    """One process that made optimizer steps."""

    pid: int
    records: tuple[Record, ...]
    """Records in order, without the summary."""
    summary: Record
    """The last summary; empty where the process was killed before the first."""

    @property
    def start(self) -> Record:
        """Its first record."""
        return self.named("start")[0] if self.named("start") else {}

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        return integer(self.summary.get("steps")) or 1

    @property
    def is_alive(self) -> bool:
        """Whether it still runs, in the background."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True

    def named(self, what: str) -> list[Record]:
        """Return its records of one kind."""
        return [record for record in self.records if record.get("what") == what]


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings in a folder."""

    processes: tuple[Process, ...]
    """Processes, the one with the most steps first."""
    loaded_python: bool
    loaded_torch: bool
    failures: tuple[str, ...]
    is_nested: bool = False
    """Whether a command of ours was among them, which tunes its trainings and reports them itself."""


def read_findings(folder: Path) -> Findings:
    """Return the findings that the processes have left in `folder` so far."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        summary = read_records(path.with_suffix(".summary"))
        found.append(Process(int(path.stem), tuple(read_records(path)), summary[-1] if summary else {}))
    failures = [path.read_text(errors="replace") for path in sorted(folder.glob("failed-*"))]
    failures += [text(record.get("message")) for each in found for record in each.named("failed")]
    return Findings(
        processes=tuple(sorted(found, key=lambda each: -each.steps)),
        loaded_python=(folder / "python").exists(),
        loaded_torch=(folder / "torch").exists(),
        failures=tuple(failures),
        is_nested=(folder / NESTED).exists(),
    )


def describe_signal(status: int) -> str | None:
    """Return the name of the signal in an exit code above 128; None: there is none."""
    try:
        return signal.Signals(status - 128).name
    except ValueError:
        return None


def number(value: Value) -> float | None:
    """Return a number of a record; None where it is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def integer(value: Value) -> int | None:
    """Return a whole number of a record; None where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text(value: Value) -> str:
    """Return a text of a record; empty where it is none."""
    return value if isinstance(value, str) else ""


def fields(value: Value) -> Record:
    """Return an object of a record; empty where it is none."""
    return value if isinstance(value, dict) else {}


def settings_of(value: object) -> Settings | None:
    """Return the settings in a record."""
    found = fields(value)
    threads = integer(found.get("threads"))
    if threads is None:
        return None
    known: dict[str, Malloc] = {"default": "default", "tuned": "tuned"}
    return Settings(threads, known.get(text(found.get("malloc")), "untouched"), pinned=found.get("pinned") is True)
