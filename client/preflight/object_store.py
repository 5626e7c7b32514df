"""Object stores, by fsspec: finished models (`PREFLIGHT_ARTIFACT_URL`), imported data and sources at URLs."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from preflight.config.secrets import redact_urls
from preflight.errors import InvalidConfig, MissingPackage
from preflight.packages import how_to_install

MAX_ERROR_LENGTH: Final = 300
"""Most characters of a store's error message."""
LOCAL_SCHEMES: Final = ("file", "local")


class FileSystem(Protocol):
    """The part of fsspec's untyped file systems that is used."""

    def open(self, path: str, mode: str, block_size: int | None = None) -> BinaryIO:
        """Open a file; written data is sent in blocks."""

    def info(self, path: str) -> Mapping[str, object]:
        """Describe a file: its `size`, and other facts of the store."""

    def modified(self, path: str) -> datetime:
        """Return when a file was written; raises `NotImplementedError` where the store does not say."""

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
        """Drop the cached listings."""

    def rm_file(self, path: str) -> None:
        """Delete a file."""


def open_url(url: str, what: str, *, other_than: Path | None = None) -> tuple[FileSystem, str]:
    """Return the file system of a URL, and the path in it.

    Args:
        url: where files are.
        what: names the URL in errors.
        other_than: the artifact directory, where the URL must not be that.

    Raises:
        InvalidConfig: fsspec does not support it, or it is `other_than`.
        MissingPackage: fsspec, or the package for this kind of URL, is not installed.
    """
    scheme = url.partition(":")[0]
    try:
        from fsspec.core import url_to_fs

        store, path = url_to_fs(url)
    except ImportError as error:
        raise MissingPackage(
            f"{what} is a {scheme} URL, which needs a package that is not installed ({describe_error(error)}); "
            f"for S3: {how_to_install('s3')}"
        ) from error
    except Exception as error:  # each file system validates its options differently
        raise InvalidConfig(
            f"{what} is a {scheme} URL that fsspec cannot use ({describe_error(error)}); write e.g. s3://bucket/prefix"
        ) from error
    if other_than is not None and scheme in LOCAL_SCHEMES and Path(path).resolve() == other_than.resolve():
        raise InvalidConfig(f"{what} is {other_than}, the artifact directory; use another directory")
    return store, str(path).rstrip("/")


def describe_error(error: Exception) -> str:
    """Return an exception of a library on one line, without passwords of URLs."""
    return redact_urls(f"{type(error).__name__}: {' '.join(str(error).split())}")[:MAX_ERROR_LENGTH]
