"""Unpacking with bounds: bytes are counted while they are read, whatever sizes an archive states."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from training.importing.shards import state_of
from training.importing.sources.base import refuse

BLOCK: Final = 1 << 20
LARGEST: Final = 64 << 30
"""Most bytes that an archive, or an array in one, may unpack to."""
RATIO: Final = 200
"""Bytes that one packed byte may become, beyond `FREE`."""
FREE: Final = 64 << 20
"""Bytes that anything may unpack to: small archives of blank pictures shrink a lot."""


class Readable(Protocol):
    """Object to read from."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, none at the end."""
        ...


def most_bytes(packed: int) -> int:
    """Return how many bytes `packed` bytes may unpack to."""
    return min(LARGEST, FREE + RATIO * packed)


def copy_bounded(file: Readable, target: Path, packed: int, name: str, check: Callable[[], None]) -> int:
    """Copy the content of `file` to `target`, whole or not at all; return its bytes.

    Raises:
        DatasetError: it is more than `most_bytes` of its packed size.
    """
    staged, size = target.parent / f".{target.name}.part", 0
    with staged.open("wb") as out:
        while block := file.read(BLOCK):
            size += len(block)
            if size > most_bytes(packed):
                staged.unlink()
                raise refuse(
                    f"{name} unpacks to more than {size - 1 >> 20:,} MiB, {RATIO} times its size and more; "
                    "unpack it yourself, if that is meant"
                )
            out.write(block)
            check()
    staged.rename(target)
    return size


@contextmanager
def made_of(source: Path, target: Path) -> Iterator[bool]:
    """Yield whether `target` was made of `source` as it is now, by an import that was killed; else it is to be made."""
    marker, state = target.with_name(f".{target.name}.of"), state_of([source])
    is_made = target.exists() and marker.exists() and marker.read_text() == state
    if not is_made:
        marker.unlink(missing_ok=True)
    yield is_made
    if not is_made:
        marker.write_text(state)


def start_of(path: Path, count: int) -> bytes:
    """Return the first bytes of a file; raises `OSError`."""
    with path.open("rb") as file:
        return file.read(count)


def unpacked_gzip(path: Path, target: Path, check: Callable[[], None]) -> Path:
    """Return the file that a gzipped one unpacks to; raises `DatasetError`."""
    with made_of(path, target) as is_made:
        try:
            if not is_made:
                with gzip.open(path) as file:
                    copy_bounded(file, target, path.stat().st_size, path.name, check)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise refuse(f"{path.name} is no whole gzip file ({error})") from error
    return target
