"""Download of a data set by torchvision, which knows the mirrors."""

import io
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from http.client import HTTPException
from pathlib import Path
from typing import Final

from preflight.errors import DatasetError
from preflight.packages import how_to_install

NETWORK_TIMEOUT: Final = 10.0
"""Longest wait in seconds for a connection or for the next bytes of a download."""


def download(name: str, torchvision_class: str, split: str | None, root: Path, absent: str) -> None:
    """Fetch the files of a torchvision class into `<root>/<class>/raw/`; `absent` begins the error messages.

    Raises:
        DatasetError: torchvision is not installed, or the download failed.
    """
    try:
        from torchvision import datasets
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another version of torch
        raise DatasetError(
            f"{absent} and cannot be downloaded without torchvision ({_reason(error)}); "
            f"put the files there, or {how_to_install('train')}",
            field=name,
        ) from error
    options = {} if split is None else {"split": split}
    try:
        with _quiet(), _network_timeout(NETWORK_TIMEOUT):
            for train in (True, False):
                getattr(datasets, torchvision_class)(root, train=train, download=True, **options)
    except (OSError, RuntimeError, HTTPException) as error:
        raise DatasetError(
            f"{absent} and could not be downloaded ({_reason(error)}); put the files there or use the data set digits",
            field=name,
        ) from error


def _reason(error: Exception) -> str:
    """Return why torchvision failed, in one line: its own messages have one per mirror."""
    text = str(error).strip()
    if unreachable := re.search(r"<urlopen error (?:\[.*?\] )?(.+?)>", text):
        return f"no network: {unreachable[1]}"
    return re.sub(r"^\[Errno \d+\] ", "", text.splitlines()[-1]) if text else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what is printed, such as progress bars: stdout is for results and stderr for the log."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


@contextmanager
def _network_timeout(seconds: float) -> Iterator[None]:
    """Bound every wait of sockets for which no timeout is set: torchvision sets none."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
