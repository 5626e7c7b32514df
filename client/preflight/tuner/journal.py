"""Files between a command and the processes that train under it: options for them, and a journal of each.

A journal has the findings of a process, one JSON object a line.
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the command."""

    exact: bool = False
    """Change nothing after the first step."""
    steps: int | None = None
    """Optimizer steps of the whole training."""
    advise: bool = False
    """Measure changes that would alter the result, after the last step."""
    interop: int | None = None
    """Inter-op threads that are set before the first forward pass, unless the script has set them; None: torch's."""

    @classmethod
    def read(cls, path: Path) -> "Options":
        """Return the options in a file of JSON; the defaults where it cannot be read."""
        with suppress(OSError, ValueError, TypeError):
            return cls(**json.loads(path.read_text()))
        return cls()

    def write(self, path: Path) -> None:
        """Write the options as `read` takes them."""
        path.write_text(json.dumps(asdict(self)))


class Journal:
    """Appends records to a file; a disk that is full, or a file that cannot be written, ends no training."""

    def __init__(self, path: Path) -> None:
        """Open `path`, whose folder exists."""
        self._path = path
        self._file = -1
        with suppress(OSError):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, what: str, **fields: object) -> None:
        """Append one record."""
        with suppress(OSError):
            os.write(self._file, _line(what, fields))

    def replace(self, what: str, **fields: object) -> None:
        """Write a record that takes the place of the last one of its kind."""
        with suppress(OSError):
            new = self._path.with_suffix(".new")
            new.write_bytes(_line(what, fields))
            new.replace(self._path.with_suffix(f".{what}"))


Record = dict[str, object]


def read_records(path: Path) -> list[Record]:
    """Return the whole records of a file; none where there is no such file."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return []
    records = []
    for line in lines[:-1]:  # what follows the last line's end was cut short by a kill
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                records.append(record)
    return records


def _line(what: str, fields: Record) -> bytes:
    record = {"what": what, "at": time.time(), **fields}
    return json.dumps(record, default=_as_fields).encode() + b"\n"


def _as_fields(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
