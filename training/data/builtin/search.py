"""Search of a data directory for data sets: a few levels deep, and no more entries than a small folder has."""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from training.data.builtin.names import Role, role_of

MAX_DEPTH: Final = 4
"""Levels of folders below the data directory."""
MAX_ENTRIES: Final = 5_000
"""Entries that are looked at in all, which takes some 10 ms on a local disk."""
MAX_FOLDER_ENTRIES: Final = 1_000
"""Entries of one folder: one with more holds single images."""
DATA: Final = (
    ".csv", ".npz", ".npy", ".pkl", ".pickle", ".parquet", ".arrow", ".mat", ".pt", ".h5", ".hdf5", ".zip", ".tar",
    ".tgz", ".7z", ".rar", ".gz", ".bz2", ".xz", ".idx", "ubyte",
)  # fmt: skip
"""Ends of names that may hold a data set."""
SKIPPED: Final = ("__MACOSX", "lost+found")
ABSENT: Final = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with files that have a role by their names."""

    path: Path
    files: dict[Role, list[Path]] = field(default_factory=dict)


@dataclass(slots=True)
class Found:
    """Content of a data directory."""

    folders: list[Folder] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    """Other files that may hold a data set."""
    unreadable: dict[Path, str] = field(default_factory=dict)
    """Folders that cannot be listed, and why."""
    left: int = MAX_ENTRIES
    """Entries that may still be looked at."""

    @property
    def is_whole(self) -> bool:
        """Whether everything was looked at."""
        return self.left > 0


def look(data_dir: Path) -> Found:
    """Return the content of `data_dir` and below, nearest first and in the order of names; reads no file.

    Hidden entries are skipped: they are downloads in progress and remains of macOS.
    """
    found = Found()
    waiting = deque([(data_dir, 0)])
    while waiting:
        path, depth = waiting.popleft()
        folder = Folder(path)
        for entry in _entries(path, found):
            role = role_of(entry.name)
            if not _is_folder(entry):
                _sort(Path(entry.path), role, folder, found)
            elif role is not None:  # a folder with the name of the file in it
                for inner in _entries(Path(entry.path), found):
                    if not _is_folder(inner):
                        _sort(Path(inner.path), role_of(inner.name), folder, found)
            elif depth < MAX_DEPTH:
                waiting.append((Path(entry.path), depth + 1))
        if folder.files:
            found.folders.append(folder)
    return found


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or to where this user may not look
        return False


def _sort(path: Path, role: Role | None, folder: Folder, found: Found) -> None:
    if role is not None:
        folder.files.setdefault(role, []).append(path)
    elif path.name.lower().endswith(DATA):
        found.others.append(path)


def _entries(path: Path, found: Found) -> Iterator["os.DirEntry[str]"]:
    """Return the entries of a folder in the order of their names, as far as they may be looked at."""
    entries: list[os.DirEntry[str]] = []
    try:
        with closing(os.scandir(path)) as listing:
            for entry in listing:
                found.left -= 1
                if found.left <= 0 or len(entries) == MAX_FOLDER_ENTRIES:
                    break
                if not entry.name.startswith((".", "~")) and entry.name not in SKIPPED:
                    entries.append(entry)
    except ABSENT:
        pass
    except OSError as error:
        found.unreadable[path] = str(error.strerror)
    return iter(sorted(entries, key=lambda entry: entry.name))
