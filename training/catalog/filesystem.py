"""File systems of object stores, by fsspec."""

from __future__ import annotations

from collections.abc import Mapping
from io import FileIO
from typing import BinaryIO, Protocol

from preflight.errors import InvalidConfig, MissingPackage
from preflight.packages import how_to_install


class FileSystem(Protocol):
    """The part of fsspec's untyped file systems that is used."""

    def open(self, path: str, mode: str, block_size: int | None = None) -> BinaryIO | FileIO:
        """Open a file; what is written is sent in blocks."""

    def info(self, path: str) -> Mapping[str, object]:
        """Describe a file."""

    def ls(self, path: str, detail: bool) -> list[str]:
        """List a folder."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""

    def isdir(self, path: str) -> bool:
        """Whether there is such a folder."""

    def find(self, path: str) -> list[str]:
        """List the files in a folder and below."""

    def makedirs(self, path: str, *, exist_ok: bool) -> None:
        """Make a folder and its parents."""

    def invalidate_cache(self) -> None:
        """Forget what was listed."""

    def rm_file(self, path: str) -> None:
        """Delete a file."""


def open_url(url: str, what: str) -> tuple[FileSystem, str]:
    """Return the file system of a URL, and the path in it; `what` names the URL in errors.

    Raises:
        InvalidConfig: fsspec does not support it.
        MissingPackage: fsspec, or the package for this kind of URL, is not installed.
    """
    scheme = url.partition(":")[0]
    try:
        from fsspec.core import url_to_fs

        store, path = url_to_fs(url)
    except ImportError as error:
        raise MissingPackage(
            f"{what} is a {scheme} URL, which needs a package that is not installed ({error}); "
            f"for S3: {how_to_install('s3')}"
        ) from error
    except Exception as error:  # each file system validates its options differently
        raise InvalidConfig(
            f"{what} is a {scheme} URL that fsspec cannot use ({words_of(error)}); write e.g. s3://bucket/prefix"
        ) from error
    return store, str(path).rstrip("/")


def words_of(error: Exception) -> str:
    """Return an error in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
