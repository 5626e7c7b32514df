"""Detection of a source's kind from its content."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

from training.importing.form import Options
from training.importing.sources.archives import is_npz, is_tar, is_zip, unpack
from training.importing.sources.arrays import idx_files, read_idx, read_npy, read_npz
from training.importing.sources.base import Source, refuse
from training.importing.sources.parquet import is_parquet, parquet_files, read_parquet
from training.importing.sources.pixel_csv import is_pixels, read_pixels, tables_in
from training.importing.sources.tables import find_table, read_table
from training.importing.sources.trees import entries, is_picture, read_tree, unwrapped

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Error numbers of a working directory that is full or cannot be written."""
FORMATS: Final = ("tree", "labels", "pixels", "arrays", "parquet", "idx")


def read_source(path: Path, options: Options, work: Path, check: Callable[[], None]) -> Source:
    """Return the samples of a local file or folder; archives are unpacked below `work`.

    Raises:
        DatasetError: it cannot be imported.
    """
    if path.is_symlink():
        path = path.resolve()
    try:
        if path.is_dir():
            return _folder(unwrapped(path), options, work, check)
        if path.is_file():
            return _file(path, options, work, check)
    except OSError as error:
        if error.errno in FULL:
            raise
        why = error.strerror or error
        raise refuse(f"{error.filename or path} cannot be read ({why}); make it readable") from error
    raise refuse(f"{path} is not there; name a folder, a file or a URL")


def _folder(root: Path, options: Options, work: Path, check: Callable[[], None]) -> Source:
    folders, others = entries(root)
    if not folders and not others:
        raise refuse(f"{root} is empty")
    chosen = options.format
    found = _arrays(root, others, work, check) if chosen in (None, "arrays", "idx") else None
    if found is not None:
        return found
    if chosen in (None, "parquet") and (paths := parquet_files(root)):
        return read_parquet(paths)
    if chosen in (None, "labels") and (table := find_table(root)) is not None:
        return read_table(root, table, options)
    if chosen == "labels":
        raise refuse(f"{root} has no table with columns for the picture and its class; add a labels.csv")
    if chosen in (None, "pixels") and (tables := tables_in(root)):
        return read_pixels(tables, work, check)
    if chosen in (None, "tree"):
        return _tree(root, others)
    raise refuse(f"{root} has nothing of the format {chosen}")


def _tree(root: Path, others: list[str]) -> Source:
    packed = [name for name in others if name.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz"))]
    if packed and not any(is_picture(name) for name in others) and not entries(root)[0]:
        raise refuse(f"{root} holds archives ({packed[0]}); name the archive itself")
    return read_tree(root)


def _arrays(root: Path, names: list[str], work: Path, check: Callable[[], None]) -> Source | None:
    """Return the samples of array files in a folder; None where there are none."""
    regular = [name for name in names if not (root / name).is_symlink()]
    archives = [name for name in regular if name.lower().endswith(".npz")]
    if len(archives) == 1:
        return read_npz(root / archives[0], work, check)
    if archives:
        raise refuse(f"{root} has several .npz files ({', '.join(archives[:5])}); name one of them")
    if arrays := [name for name in regular if name.lower().endswith(".npy")]:
        return read_npy(root, arrays)
    files = idx_files(root, regular)
    return read_idx(root, files, work, check) if files else None


def _file(path: Path, options: Options, work: Path, check: Callable[[], None]) -> Source:
    if path.stat().st_size == 0:
        raise refuse(f"{path} is empty")
    if is_zip(path):
        if is_npz(path):
            return read_npz(path, work, check)
        return _folder(unwrapped(unpack(path, work, check)), options, work, check)
    if is_tar(path):
        return _folder(unwrapped(unpack(path, work, check)), options, work, check)
    if is_parquet(path):
        return read_parquet([path])
    if path.suffix.lower() == ".npy" or idx_files(path.parent, [path.name]):
        raise refuse(f"{path} is one array; name the folder in which pictures and labels lie, or a .npz with both")
    if options.format in (None, "pixels") and is_pixels(path):
        return read_pixels([path], work, check)
    raise refuse(f"{path} is nothing that is imported; see docs/how-to/data.md for what is")
