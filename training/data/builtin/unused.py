"""Description of files in a data directory that are not used."""

from pathlib import Path
from typing import Final

from training.data.builtin import idx, npz
from training.data.builtin.checksums import published_by
from training.data.builtin.idx_file import file_digests
from training.data.builtin.search import MAX_ENTRIES, Folder, Found

MOST: Final = 3
"""Most files and folders that are named."""
PACKED: Final = (".zip", ".tar", ".tgz", ".7z", ".rar")


def describe_unused(seen: Found, data_dir: Path, name: str) -> str:
    """Return a clause on files that could be meant as the data set `name`, and on folders that cannot be read.

    Files of another built-in data set are left out; "" where there is nothing to say.
    """
    files = [path for folder in seen.folders if not _is_anothers(folder, name) for path in _paths(folder)]
    clauses = []
    if found := [*files, *seen.others]:
        named = [_describe(path, data_dir, name) for path in found[:MOST]]
        more = [f"and {len(found) - MOST} more"] if len(found) > MOST else []
        clauses.append(f"found there but not used: {', '.join([*named, *more])}")
    if seen.unreadable:
        path, why = next(iter(seen.unreadable.items()))
        clauses.append(f"{path} cannot be read: {why}")
    if not seen.is_whole:
        clauses.append(f"only {MAX_ENTRIES:,} entries were looked at")
    return "; ".join(clauses)


def _paths(folder: Folder) -> list[Path]:
    return sorted(path for paths in folder.files.values() for path in paths)


def _is_anothers(folder: Folder, name: str) -> bool:
    labels = [path for role, paths in folder.files.items() if role.kind == "label" for path in paths]
    return any(published_by(file_digests(path)) not in (None, name) for path in labels)


def _describe(path: Path, data_dir: Path, name: str) -> str:
    """Return the path of a file below `data_dir`, and why it is not used."""
    shown = str(path.relative_to(data_dir))
    if path.name.lower().endswith(PACKED):
        return f"{shown} (unpack it)"
    if path.suffix.lower() == npz.SUFFIX:
        return f"{shown} (not Keras' archive of mnist)"
    try:
        what = idx.peek(path)
    except OSError as error:
        return f"{shown} (cannot be read: {error.strerror})"
    return f"{shown} ({what or f'no checksum of {name}, or not all four files'})"
