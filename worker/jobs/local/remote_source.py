"""Sources at URLs, by fsspec: only below the prefixes that the operator allows, with bounds on files and bytes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

from preflight.config.secrets import redact_urls
from preflight.errors import PreflightError
from preflight.object_store import FileSystem, describe_error, open_url
from training.importing.form import MAX_SAMPLES
from training.importing.sources.base import refuse
from training.importing.sources.files import LARGEST

SCHEMES: Final = ("s3", "gs", "https", "file", "memory")
BLOCK: Final = 1 << 20
DONE: Final = "fetched"


def is_url(source: str) -> bool:
    """Whether a source is a URL."""
    return "://" in source


def fetch(url: str, allowed: Sequence[str], work: Path, check: Callable[[], None]) -> Path:
    """Fetch a URL, and return the file or folder below `work` with its contents.

    Raises:
        DatasetError: it is not below one of the `allowed` prefixes, is not there, or is too large.
        MissingPackage: the package for this kind of URL is not installed.
    """
    _require_allowed(url, allowed)
    folder = work / "remote"
    name = PurePosixPath(urlsplit(url).path).name or "source"
    if (work / DONE).exists():
        return folder / name if (folder / name).exists() else folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    store, root = open_url(url, "the source")
    try:
        if url.startswith("https:") or not store.isdir(root):
            _copy(store, root, folder / name, 0, check)
            found = folder / name
        else:
            total = 0
            for number, path in enumerate(store.find(root)):
                if number > MAX_SAMPLES:
                    raise refuse(f"{redact_urls(url)} has more than {MAX_SAMPLES:,} files")
                if str(path).endswith("/"):  # an empty object that stands for a folder, as consoles make them
                    continue
                parts = PurePosixPath(str(path)[len(root) :].lstrip("/")).parts
                if not parts or ".." in parts:
                    raise refuse(f"{redact_urls(url)} has a path that leads out of it ({ascii(path)[:200]})")
                target = folder.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                total = _copy(store, str(path), target, total, check)
            found = folder
    except PreflightError:
        raise
    except FileNotFoundError as error:
        raise refuse(f"{redact_urls(url)} is not there") from error
    except OSError as error:
        if error.errno is not None and error.filename is not None:
            raise
        raise refuse(f"{redact_urls(url)} cannot be read ({describe_error(error)})") from error
    except Exception as error:  # each client has its own errors
        raise refuse(f"{redact_urls(url)} cannot be read ({describe_error(error)})") from error
    (work / DONE).touch()
    return found


def _require_allowed(url: str, allowed: Sequence[str]) -> None:
    shown, parts = redact_urls(url), urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise refuse(f"{shown} is a {parts.scheme} URL; use s3, gs or https")
    path = unquote(parts.path)
    if ".." in path.split("/") or "\\" in path or "@" in parts.netloc or parts.fragment or "::" in url:
        raise refuse(f"{shown} is no plain URL; name the folder or file itself, without a user")
    for prefix in allowed:
        own = urlsplit(prefix)
        folder = own.path.rstrip("/") + "/"
        if (own.scheme, own.netloc.lower()) == (parts.scheme, parts.netloc.lower()) and f"{path}/".startswith(folder):
            return
    listed = ", ".join(map(redact_urls, allowed)) or "none"
    raise refuse(
        f"{shown} is not below an allowed prefix ({listed}); the operator allows one by PREFLIGHT_DATA_SOURCES"
    )


def _copy(store: FileSystem, path: str, target: Path, total: int, check: Callable[[], None]) -> int:
    """Copy a file; returns the bytes of all files until now."""
    with store.open(path, "rb") as file, target.open("wb") as out:
        while block := file.read(BLOCK):
            total += len(block)
            if total > LARGEST:
                raise refuse(f"the source has more than {LARGEST >> 30} GiB")
            out.write(block)
            check()
    return total
