"""Files that are whole or not there, and readers that no content can surprise; needs no torch."""

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Final

LARGEST_TEXT: Final = 16 << 20
"""Bytes; no manifest or checkpoint description comes near it, so a longer file is none and is not read."""


class NotRegular(OSError):
    """What lies under a name is no regular file, or one larger than it may be."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds either what it held before or all of it, a power cut included."""
    with staged(path, (data,)) as commit:
        commit()


@contextmanager
def staged(
    path: Path, chunks: Iterable[bytes | memoryview], *, spare: Path | None = None
) -> Iterator[Callable[[], None]]:
    """Write `chunks` beside `path`, synced; yields the function that puts it in place. Left undone, nothing stays.

    Where there is a `spare`, a file beside it that nobody needs or reads any more, it is overwritten: its pages are in
    memory and its blocks on disk, while new ones take a multiple of the processor time.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    descriptor = _in_place_of(descriptor, spare, temporary)

    def commit() -> None:
        temporary.replace(path)
        sync_directory(path.parent)

    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(chunks)
            file.truncate()  # flushes, too; a spare may be longer
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp's 0600 would hide the file from the group that reads artifacts
        yield commit
    finally:
        temporary.unlink(missing_ok=True)


def _in_place_of(descriptor: int, spare: Path | None, temporary: Path) -> int:
    """Return the descriptor of the spare file, under the name `temporary` from now on; else the one that is there."""
    if spare is None:
        return descriptor
    try:
        found = os.open(spare, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return descriptor
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed; who reads it holds it shared
        spare.replace(temporary)
    except OSError:
        os.close(found)
        return descriptor
    os.close(descriptor)
    return found


def sync_directory(directory: Path) -> None:
    """Have the names in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; a symbolic link is not followed, and a pipe does not block.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_text(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """Return the content of a regular file of at most `most` bytes; raises `OSError` otherwise."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise NotRegular(f"{path} is larger than {most >> 20} MiB")
    return content


def sha256_of(path: Path) -> str:
    """Return the sha256 of a regular file in hex; raises `OSError` where there is none."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
