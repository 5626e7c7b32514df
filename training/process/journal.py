"""The append-only file through which a child process speaks to its parent.

One record a line: `{v, run, seq, kind, t, payload, crc}` as JSON. A line is one `write` on an O_APPEND
descriptor, so a kill tears at most the last one; `crc` (CRC-32 of the line without it) tells a torn or damaged
line from a whole one. The reader skips what is damaged, of another run, or does not grow in `seq`, and so
always has the last whole record, whatever happened to the writer.
"""

import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from pydantic import JsonValue

VERSION: Final = 1
LONGEST_LINE: Final = 1 << 20
"""Bytes; no record comes near it, so a longer line is garbage and is not kept in memory."""


@dataclass(frozen=True, slots=True)
class Record:
    """One whole record as the reader hands it out."""

    seq: int
    kind: str
    time: float
    """Seconds since the epoch when it was written."""
    payload: dict[str, JsonValue]


def encode(run: str, seq: int, kind: str, now: float, payload: dict[str, JsonValue]) -> bytes:
    """Return the record as one line of ASCII JSON that ends with a newline."""
    body: dict[str, JsonValue] = {
        "v": VERSION, "run": run, "seq": seq, "kind": kind, "t": now, "payload": payload,
    }  # fmt: skip
    body["crc"] = _checksum(body)
    return json.dumps(body, separators=(",", ":"), sort_keys=True, allow_nan=False).encode("ascii") + b"\n"


def decode(line: bytes, run: str | None) -> Record | None:
    """Return the record of `run` in `line`, or None when it is damaged, of another run or another version.

    With `run` None, those of every run are.
    """
    try:
        body = json.loads(line)
        whole = isinstance(body, dict) and body.pop("crc", None) == _checksum(body)
    except (ValueError, RecursionError):  # from either: what is nested too deep to write may be read
        return None
    if not whole or body.get("v") != VERSION or run not in (None, body.get("run")):
        return None
    match body:
        case {"seq": int(seq), "kind": str(kind), "t": float(when), "payload": dict(payload)}:
            return Record(seq, kind, when, payload)
    return None


def _checksum(body: dict[str, JsonValue]) -> int:
    return zlib.crc32(json.dumps(body, separators=(",", ":"), sort_keys=True).encode())


class Report(Protocol):
    """Where work says what happens: a journal in a child process."""

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        """Take one record."""
        ...


class JournalWriter:
    """Appends records of one run.

    A record that must not be lost (`durable`) is synced to disk and raises `OSError` when it cannot be
    written; any other is dropped when the disk is full, because progress is not worth a training.
    """

    def __init__(self, path: Path, run: str, bell: int | None = None) -> None:
        """Append to `path`; `bell` is the non-blocking write end of a pipe that gets a byte after each record."""
        self._run = run
        self._seq = 0
        self._bell = bell
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # Who wrote here before may have been killed within a line; the reader skips an empty one.
        self._torn = os.fstat(self._file).st_size > 0

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        """Append one record; raises `OSError` only for a durable one, `ValueError` for NaN in the payload."""
        self._seq += 1
        line = encode(self._run, self._seq, kind, time.time(), payload)
        try:
            # After a torn write the next record must not be glued to the debris.
            self._append(b"\n" + line if self._torn else line)
            if durable:
                os.fsync(self._file)
        except OSError:
            if durable:
                raise
        self._ring()

    def _ring(self) -> None:
        if self._bell is not None:
            with suppress(OSError):  # it rings already, or nobody listens
                os.write(self._bell, b"\n")

    def _append(self, data: bytes) -> None:
        self._torn = True
        written = os.write(self._file, data)
        if written < len(data):
            raise OSError(f"only {written} of {len(data)} bytes were written")
        self._torn = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_runs(path: Path) -> Iterator[Record]:
    """Yield the whole records of every run in a file, in order; none where there is no file."""
    with suppress(OSError), path.open("rb") as file:
        while line := file.readline(LONGEST_LINE):
            record = decode(line, None)
            if record is not None:
                yield record


class JournalReader:
    """Reads the whole records of one run as they come; never raises for what is in the file."""

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._run = run
        self._offset = 0
        self._tail = b""
        self._last_seq = 0

    def read(self) -> list[Record]:
        """Return the records that became whole since the last call, in order."""
        lines = (self._tail + self._fresh_bytes()).split(b"\n")
        self._tail = lines.pop()[-LONGEST_LINE:]
        records = []
        for line in lines:
            record = decode(line, self._run) if 0 < len(line) <= LONGEST_LINE else None
            if record is not None and record.seq > self._last_seq:
                self._last_seq = record.seq
                records.append(record)
        return records

    def _fresh_bytes(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return b""
        self._offset += len(data)
        return data
