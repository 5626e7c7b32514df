"""Journal: the append-only file of a child process, which its parent reads.

One record a line: `{v, run, seq, kind, t, payload, crc}` as JSON. A line is one `write` on an O_APPEND
descriptor, so a kill tears at most the last one; `crc` is the CRC-32 of the line without it. The reader skips lines
that are damaged, of another run, or whose `seq` does not grow.
"""

import json
import mmap
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

from preflight.files.atomic_files import sync

VERSION: Final = 1
SEQ, TORN = 0, 1
MAX_LINE_BYTES: Final = 1 << 20
"""A longer line is no record and is not kept in memory."""


@dataclass(frozen=True, slots=True)
class Record:
    """One whole record."""

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
    """Return the record in `line`; None where it is damaged or of another version, or not of `run` (None: any run)."""
    try:
        body = json.loads(line)
        whole = isinstance(body, dict) and body.pop("crc", None) == _checksum(body)
    except (ValueError, RecursionError):  # nested deeply enough to be read but not written
        return None
    if not whole or body.get("v") != VERSION or run not in (None, body.get("run")):
        return None
    match body:
        case {"seq": int(seq), "kind": str(kind), "t": float(when), "payload": dict(payload)}:
            return Record(seq, kind, when, payload)
    return None


def _checksum(body: dict[str, JsonValue]) -> int:
    return zlib.crc32(json.dumps(body, separators=(",", ":"), sort_keys=True).encode())


class RecordWriter(Protocol):
    """Takes the records of a task: a journal in a child process."""

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        """Take one record."""
        ...


class JournalWriter:
    """Appends records of one run. A fork may continue it, while the process that made it writes nothing.

    A `durable` record is synced to disk, or raises `OSError`; any other is dropped when the disk is full.
    """

    def __init__(self, path: Path, run: str, notify_fd: int | None = None) -> None:
        """Append to `path`; `notify_fd` is the non-blocking write end of a pipe that gets a byte after each record."""
        self._run = run
        self._place = memoryview(mmap.mmap(-1, 16)).cast("Q")
        """Number of the last record, and whether its line may be torn: a fork of this process continues from there."""
        self._notify_fd = notify_fd
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # An earlier writer may have been killed within a line; the reader skips an empty one.
        self._place[TORN] = os.fstat(self._file).st_size > 0

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        """Append one record; raises `OSError` only for a durable one, `ValueError` for NaN in the payload."""
        self._place[SEQ] += 1
        line = encode(self._run, self._place[SEQ], kind, time.time(), payload)
        try:
            # Start a new line after a torn write.
            self._append(b"\n" + line if self._place[TORN] else line)
            if durable:
                sync(self._file)
        except OSError:
            if durable:
                raise
        self._notify()

    def _notify(self) -> None:
        if self._notify_fd is not None:
            with suppress(OSError):  # the pipe is full, or closed
                os.write(self._notify_fd, b"\n")

    def _append(self, data: bytes) -> None:
        self._place[TORN] = True
        written = os.write(self._file, data)
        if written < len(data):
            raise OSError(f"only {written} of {len(data)} bytes were written")
        self._place[TORN] = False

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
        while line := file.readline(MAX_LINE_BYTES):
            record = decode(line, None)
            if record is not None:
                yield record


class JournalReader:
    """Reads the whole records of one run as they come; content of the file never raises."""

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._run = run
        self._offset = 0
        self._tail = b""
        self._last_seq = 0

    def read(self) -> list[Record]:
        """Return the records that were completed since the last call, in order."""
        lines = (self._tail + self._read_new_bytes()).split(b"\n")
        self._tail = lines.pop()[-MAX_LINE_BYTES:]
        records = []
        for line in lines:
            record = decode(line, self._run) if 0 < len(line) <= MAX_LINE_BYTES else None
            if record is not None and record.seq > self._last_seq:
                self._last_seq = record.seq
                records.append(record)
        return records

    def _read_new_bytes(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return b""
        self._offset += len(data)
        return data
