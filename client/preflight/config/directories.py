"""Directories of the settings: paths of this machine, below a home directory where there is one."""

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

URL: Final = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""Beginning of a URL; `Path` would make a relative directory of it."""


def local_path(value: str | Path) -> Path:
    """Return the absolute path of a directory or file; `~` is the home directory, or its substitute.

    Raises:
        ValueError: it is a URL.
    """
    text = str(value)
    if URL.match(text):
        raise ValueError(
            "must be a path on this machine, not a URL; PREFLIGHT_ARTIFACT_URL is where models are uploaded to"
        )
    if text == "~" or text.startswith("~/"):
        return (home() / text[2:]).absolute()
    return Path(text).absolute()


def home() -> Path:
    """Return the home directory of this user; a directory for temporary files where there is none.

    A user id without an entry in /etc/passwd has none unless HOME is set, and an empty or relative HOME names none.

    Raises:
        ValueError: somebody else owns the directory for temporary files.
    """
    found = _own_home()
    if found is not None:
        return found
    substitute = Path(tempfile.gettempdir()) / f"preflight-{os.getuid()}"
    with suppress(OSError):
        substitute.mkdir(mode=0o700, exist_ok=True)
        if substitute.lstat().st_uid != os.getuid():
            raise ValueError(f"is below HOME, which is not set, and {substitute} belongs to somebody else; set HOME")
    return substitute


def explain_homeless() -> str | None:
    """Return the sentence on a missing home directory; None where there is one."""
    if _own_home() is not None:
        return None
    return (
        f"HOME names no directory and user {os.getuid()} has no home directory, so directories that are not set are in "
        f"{home()}; set HOME, or PREFLIGHT_DATA_DIR, PREFLIGHT_ARTIFACT_DIR, PREFLIGHT_CACHE_DIR and "
        "PREFLIGHT_STATE_DIR"
    )


def _own_home() -> Path | None:
    try:
        found = Path.home()
    except RuntimeError:
        return None
    return found if found.is_absolute() else None
