"""Damages of files and directories, for tests of their readers."""

import os
from collections.abc import Callable
from pathlib import Path

Harm = Callable[[Path], object]
"""Function that damages a file."""


def replaced_by(content: bytes) -> Harm:
    return lambda path: path.write_bytes(content)


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path) -> None:
    """Flip a bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def linked(path: Path) -> None:
    """Put a symbolic link in its place, which leads to it."""
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def a_pipe(path: Path) -> None:
    """Put a pipe in its place, which would block a reader that opens it."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def a_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)


def huge(path: Path) -> None:
    """Make it a sparse terabyte."""
    os.truncate(path, 1 << 40)
