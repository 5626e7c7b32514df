"""Atomic writes of files, and readers that are safe with any content; needs no torch."""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from mmap import mmap
from pathlib import Path
from typing import BinaryIO, Final

from preflight.files.locks import locked_temporary

LARGEST_TEXT: Final = 16 << 20
"""Most bytes of a manifest or a checkpoint description; none comes near it, so a longer file is not read."""
BLOCK: Final = 1 << 20
"""Bytes written at once past the page cache; so few stay in the processor's own cache on their way."""
CANNOT_SYNC: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of fsync on a file system that has none, as SMB and FUSE for directories; nothing was lost."""
SECTOR: Final = 4096
"""Bytes of which offsets and sizes of such writes are multiples: the largest sector of today's disks."""


class NotRegular(OSError):
    """The path is no regular file, or the file is larger than it may be."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds either its former content or all of it, a power cut included."""
    with staged(path, (data,)) as commit:
        commit()


@contextmanager
def staged(path: Path, chunks: Iterable[bytes | memoryview], *, uncached: bool = False) -> Iterator[Callable[[], None]]:
    """Write `chunks` next to `path`, synced; yield the function that puts the file in place. Uncalled, nothing stays.

    `uncached`: past the kernel's page cache where the file system can. The pages of a large file count against the
    memory limit, and making them may take several times as long as hashing it (docs/decisions.md).
    """
    descriptor, temporary = locked_temporary(path)

    def commit() -> None:
        temporary.replace(path)
        sync_directory(path.parent)

    try:
        if uncached:
            _write_uncached(descriptor, chunks)
        else:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.writelines(chunks)
        sync(descriptor)
        # mkstemp's 0600 would hide the file from the group that reads artifacts. Volumes whose files all have the mode
        # and the owner of the mount (vfat, SMB, gcsfuse, NFS with root squash) refuse to change it.
        with suppress(OSError):
            os.fchmod(descriptor, 0o644)
        yield commit
    finally:
        temporary.unlink(missing_ok=True)
        os.close(descriptor)  # only now: as long as it is open its lock says that the file is no leftover


def _write_uncached(descriptor: int, chunks: Iterable[bytes | memoryview]) -> None:
    """Write `chunks` to a new file by way of one block: O_DIRECT wants memory, places and sizes that are aligned."""
    with suppress(OSError):  # a file system without it (tmpfs before Linux 6.5) says so at once
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    block = memoryview(mmap(-1, BLOCK))
    size = filled = 0
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            taken = min(len(rest), BLOCK - filled)
            block[filled : filled + taken] = rest[:taken]
            rest, filled, size = rest[taken:], filled + taken, size + taken
            if filled == BLOCK:
                _write_block(descriptor, block)
                filled = 0
    _write_block(descriptor, block[: filled + -filled % SECTOR])
    os.ftruncate(descriptor, size)


def _write_block(descriptor: int, block: memoryview) -> None:
    """Write all of `block`; by the page cache from the first refusal of its alignment on."""
    while block:
        try:
            block = block[os.write(descriptor, block) :]
        except OSError as error:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                raise
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)


def sync_directory(directory: Path) -> None:
    """Have the names in `directory` survive a power cut, where the file system can."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def sync(descriptor: int) -> None:
    """Have a file or a directory survive a power cut, where the file system can; raises `OSError` where that failed."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise


def silent() -> None:
    """Do nothing: no caller waits for a heartbeat."""


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


def sha256_of(path: Path, alive: Callable[[], None] = silent) -> str:
    """Return the sha256 of a regular file in hex, calling `alive` after every block; raises `OSError`."""
    with open_regular(path) as file:
        return hash_rest(file, alive)


def hash_rest(file: BinaryIO, alive: Callable[[], None]) -> str:
    """Return the sha256, in hex, of the rest of `file`, calling `alive` after every block; raises `OSError`."""
    digest = hashlib.sha256()
    while block := file.read(BLOCK):
        digest.update(block)
        alive()
    return digest.hexdigest()
