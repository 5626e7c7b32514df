"""The object store of finished models (`PREFLIGHT_ARTIFACT_URL`), by fsspec."""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from preflight.config.secrets import redact_urls
from preflight.errors import InvalidConfig, MissingPackage
from preflight.packages import how_to_install

MAX_ERROR_LENGTH: Final = 300
"""Characters of a service's error message."""


class FileSystem(Protocol):
    """The part of fsspec's untyped file systems that is used."""

    def open(self, path: str, mode: str, *, block_size: int) -> BinaryIO:
        """Open a file."""

    def info(self, path: str) -> Mapping[str, object]:
        """Describe a file: its `size`, and what else the store says."""

    def makedirs(self, path: str, *, exist_ok: bool) -> None:
        """Make a directory and its parents."""

    def rm_file(self, path: str) -> None:
        """Delete a file."""


def open_store(url: str, scheme: str, artifact_dir: Path) -> tuple[FileSystem, str]:
    """Return the file system of `url`, and the path in it.

    Raises:
        InvalidConfig: fsspec does not support the URL, or it is `artifact_dir` itself.
        MissingPackage: fsspec, or the package for this kind of URL, is not installed.
    """
    try:
        from fsspec.core import url_to_fs

        store, path = url_to_fs(url)
    except ImportError as error:
        raise MissingPackage(
            f"PREFLIGHT_ARTIFACT_URL is a {scheme} URL, which needs a package that is not installed "
            f"({describe_error(error)}); for S3: {how_to_install('s3')}"
        ) from error
    except Exception as error:  # each file system validates its options differently
        raise InvalidConfig(
            f"PREFLIGHT_ARTIFACT_URL is a {scheme} URL that fsspec cannot use ({describe_error(error)}); "
            "write e.g. s3://bucket/prefix"
        ) from error
    if scheme in ("file", "local") and Path(path).resolve() == artifact_dir.resolve():
        raise InvalidConfig(f"PREFLIGHT_ARTIFACT_URL is {artifact_dir}, the artifact directory; use another directory")
    return store, str(path).rstrip("/")


def describe_error(error: Exception) -> str:
    """Return an exception of a library on one line, without passwords of URLs."""
    return redact_urls(f"{type(error).__name__}: {' '.join(str(error).split())}")[:MAX_ERROR_LENGTH]
