"""Tasks of the decoding children, and the rows that they leave.

A task is a part of a source that one child decodes at a time. It crosses a pipe as JSON, and its rows lie in two files
of the import's working directory: `<name>.images.npy` and `<name>.rows.npy`. A third one, `<name>.json`, is
written last: where it is, both are whole, and the task is not done again after a kill.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final, Literal

from preflight.pictures.form import Form

Kind = Literal["files", "pixels", "arrays", "parquet"]

ANY, TRAIN, VALIDATION, TEST = range(4)
"""Sides of the split; `ANY`: the source does not say."""
SIDES: Final = ("", "train", "validation", "test")
EXAMPLES: Final = 5
"""Files that are named for each reason of a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A part of a source."""

    kind: Kind
    path: str
    """Path of the folder (`files`) or of the file that holds the samples."""
    first: int = 0
    """Number of its first sample, in messages and, of `arrays`, in the array."""
    count: int = 0
    files: tuple[str, ...] = ()
    """Paths of pictures below `path`, of kind `files`."""
    labels: tuple[int, ...] = ()
    """Label of each file, a number in `names`."""
    sides: tuple[int, ...] = ()
    """Side of each file; one alone stands for all."""
    groups: tuple[str, ...] = ()
    """Group of each file; empty: none."""
    names: tuple[str, ...] = ()
    """Class names."""
    extra: dict[str, str | int | float | bool | list[str]] = field(default_factory=dict)
    """Further values that the reader of this kind needs."""

    def side(self, index: int) -> int:
        """Return the side of a sample."""
        return self.sides[index] if len(self.sides) > 1 else self.sides[0] if self.sides else ANY

    def name(self, index: int) -> str:
        """Return the name of a sample in messages."""
        if self.kind == "files":
            return self.files[index]
        return f"{self.extra.get('array', Path(self.path).name)}, row {self.first + index}"

    def key(self, form: Form) -> str:
        """Return the name of its files: 32 hexadecimal digits, a hash of the task and the form."""
        asked = json.dumps([self.as_json(), asdict(form)], sort_keys=True)
        return hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()

    def state(self) -> str:
        """Return the `state_of` the files that the task reads."""
        if self.kind == "files":
            return state_of(f"{self.path}/{file}" for file in self.files)
        return state_of((self.path, str(self.extra["labels"])) if self.kind == "arrays" else (self.path,))

    def as_json(self) -> dict[str, object]:
        """Return what `Shard(**...)` takes, as JSON has it."""
        return {name: getattr(self, name) for name in FIELDS}  # `asdict` copies each of its texts


def state_of(paths: Iterable[str | Path]) -> str:
    """Return a hash of sizes and times of files: another one where a file has changed, or another has its name."""
    found = hashlib.blake2b(digest_size=16)
    for path in paths:
        try:
            status = os.lstat(path)
            found.update(f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns};".encode())
        except OSError as error:
            found.update(f"{error.errno};".encode())
    return found.hexdigest()


FIELDS: Final = tuple(each.name for each in fields(Shard))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Samples that are left out for one reason."""

    reason: str
    count: int
    files: tuple[str, ...]
    """Names of at most `EXAMPLES` of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Content of `<name>.json` for a task that is done."""

    rows: int
    names: tuple[str, ...]
    """Class names, by the numbers in the rows."""
    refused: tuple[tuple[int, str], ...]
    """Number of each sample within the task that is left out, and why."""
    items: int
    """Samples of the task, those that are left out included."""
    state: str
    """State of the task's files before they were read."""

    @classmethod
    def read(cls, path: Path) -> Decoded | None:
        """Return the content of a task's file; None where the task is not done."""
        try:
            said = json.loads(path.read_bytes())
            refused = tuple((int(item), str(why)) for item, why in said["refused"])
            return cls(rows=said["rows"], names=tuple(said["names"]), refused=refused, items=said["items"],
                       state=said["state"])  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError):
            return None
