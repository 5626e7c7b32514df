"""SHA-256 of large files: computed once for as long as a file looks unchanged, with a sign of life at every block."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Final

from pydantic.dataclasses import dataclass

from preflight.contract.spec import STRICT
from preflight.files.atomic_files import BLOCK, hash_rest, silent

SETTLED_NS: Final = 2_000_000_000
"""Nanoseconds without a change after which a file's times identify its content: no file system's clock is coarser."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class FileState:
    """State of a file. A change of its content changes `ctime_ns`, which no process can set."""

    device: int
    inode: int
    start: int
    """Bytes before those that were hashed."""
    size: int
    """Size in bytes, those before `start` included."""
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Digest:
    """SHA-256 of one file in a state; one process may pass it on to another of the same machine."""

    seen: FileState
    sha256: str


class Digests:
    """The files that were hashed in one attempt."""

    def __init__(self, known: Iterable[Digest] = (), alive: Callable[[], None] = silent) -> None:
        """Begin with the digests in `known`; `alive` is called after every block that is hashed."""
        self._known = {digest.seen: digest.sha256 for digest in known}
        self._alive = alive

    def sha256(self, file: BinaryIO) -> str:
        """Return the sha256, in hex, of the rest of `file`, without reading it where the file looks as before.

        Raises:
            OSError: it cannot be read.
        """
        seen, began = _seen(file), time.time_ns()
        known = self._known.get(seen)
        if known is not None:
            return known
        start = file.tell()
        digest = hash_rest(file, self._alive)
        file.seek(start)
        if _seen(file) == seen and seen.ctime_ns + SETTLED_NS < began:
            self._known[seen] = digest
        return digest

    def known(self) -> tuple[Digest, ...]:
        """Return the digests so far."""
        return tuple(Digest(seen=seen, sha256=sha256) for seen, sha256 in self._known.items())


class HashedChunks:
    """Chunks on their way to a file, hashed and counted as they are taken."""

    def __init__(self, chunks: Iterable[bytes | memoryview]) -> None:
        """Take `chunks` one at a time."""
        self._chunks = chunks
        self._digest = hashlib.sha256()
        self.bytes = 0
        """Number of bytes that were taken so far."""

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """Yield blocks: a block that was just hashed is still in the processor's cache when it is written."""
        for chunk in self._chunks:
            for start in range(0, len(chunk), BLOCK):
                block = chunk[start : start + BLOCK]
                self._digest.update(block)
                self.bytes += len(block)
                yield block

    @property
    def sha256(self) -> str:
        """The sha256, in hex, of the chunks taken so far."""
        return self._digest.hexdigest()


def _seen(file: BinaryIO) -> FileState:
    found = os.fstat(file.fileno())
    return FileState(
        device=found.st_dev, inode=found.st_ino, start=file.tell(), size=found.st_size,
        mtime_ns=found.st_mtime_ns, ctime_ns=found.st_ctime_ns,
    )  # fmt: skip
