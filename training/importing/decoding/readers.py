"""Readers of the decoding child: the rows of each kind of task."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image

from preflight.pictures.decoding import Probe, Unusable, decode, fit, probe, probe_pixels
from preflight.pictures.form import Form
from training.importing.decoding import arrays, parquet, pixels
from training.importing.decoding.progress import Progress
from training.importing.form import MAX_PICTURE_BYTES
from training.importing.rows import MODES, ROW, Batch, source_key, text_hash
from training.importing.shards import Kind, Shard

if TYPE_CHECKING:
    from training.importing.decoding.earlier import Earlier


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Rows and class names that were read of a task."""

    batch: Batch
    names: tuple[str, ...]


class Folder:
    """Opens files below a folder; no part of a path is followed where it is a link."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._parent: str | None = None
        self._descriptor = -1

    def status(self, path: str) -> os.stat_result:
        """Return the state of a file, or of a link that lies there; raises `OSError`."""
        return os.stat(self._enter(path), dir_fd=self._descriptor, follow_symlinks=False)

    def read(self, path: str) -> tuple[bytes, os.stat_result]:
        """Return the content and state of a regular file; raises `Unusable`, `OSError`."""
        name = self._enter(path)
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._descriptor)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise Unusable("is no regular file")
            if found.st_size > MAX_PICTURE_BYTES:
                raise Unusable(f"has {found.st_size >> 20:,} MiB, but may have at most {MAX_PICTURE_BYTES >> 20}")
            data = os.read(file, found.st_size + 1)
            while len(data) < found.st_size and (more := os.read(file, found.st_size - len(data))):
                data += more
        finally:
            os.close(file)
        return data, found

    def _enter(self, path: str) -> str:
        """Open the folder of a file, unless it is open; return the file's name in it."""
        parent, _, name = path.rpartition("/")
        if parent != self._parent:
            self.close()
            self._descriptor, self._parent = self._walk(parent), parent
        return name

    def _walk(self, parent: str) -> int:
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        for part in parent.split("/") if parent else ():
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        return descriptor

    def close(self) -> None:
        """Close the folder that was read last."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_files(shard: Shard, form: Form, progress: Progress, earlier: Earlier | None = None) -> Result:
    """Decode pictures that are files, but for those that `earlier` has."""
    images = np.empty((len(shard.files), form.channels, form.height, form.width), np.uint8)
    items: list[int] = []
    found: list[tuple[str, int, int]] = []
    keys: list[bytes] = []
    folder = Folder(shard.path)
    for item, path in enumerate(shard.files):
        if not progress.begins(item):
            continue
        try:
            kept, status = None, None
            if earlier is not None:
                status = folder.status(path)
                kept = earlier.find(source_key(path, status.st_size, status.st_mtime_ns))
            if kept is None:
                data, status = folder.read(path)
                kept = decode(data, form)
            images[len(items)], mode, height, width = kept
        except Unusable as error:
            progress.refuse(item, str(error))
        except OSError as error:
            progress.refuse(item, f"cannot be read ({error.strerror})")
        else:
            items.append(item)
            found.append((mode, height, width))
            keys.append(source_key(path, status.st_size, status.st_mtime_ns) if status else bytes(16))
    folder.close()
    rows = rows_of(items, found)
    index = np.asarray(items, dtype=np.int64)
    rows["label"] = np.asarray(shard.labels, np.uint16)[index]
    rows["side"] = np.asarray(shard.sides, np.uint8)[index] if len(shard.sides) > 1 else shard.side(0)
    if shard.groups:
        rows["group"] = [text_hash(shard.groups[item]) for item in items]
    rows["source"] = np.frombuffer(b"".join(keys), "<u8").reshape(-1, 2)
    return Result(Batch(images[: len(items)], rows), shard.names)


def read_arrays(shard: Shard, form: Form, progress: Progress) -> Result:
    """Take pictures from an array."""
    pictures, labels = arrays.read(shard)
    return _from_pixels(shard, form, progress, pictures, labels)


def read_pixels(shard: Shard, form: Form, progress: Progress) -> Result:
    """Take pictures from rows of a table."""
    pictures, labels = pixels.read(shard, progress)
    return _from_pixels(shard, form, progress, pictures, labels)


def read_parquet(shard: Shard, form: Form, progress: Progress) -> Result:
    """Decode pictures that are in a column of a Parquet file."""
    images = np.empty((shard.count, form.channels, form.height, form.width), np.uint8)
    items: list[int] = []
    labels: list[str] = []
    found: list[tuple[str, int, int]] = []
    for item, (data, label) in enumerate(parquet.read(shard)):
        if not progress.begins(item):
            continue
        if label is None:
            progress.refuse(item, "has no label")
            continue
        try:
            if data is None:
                raise Unusable("has no picture")
            images[len(items)], mode, height, width = decode(data, form)
        except Unusable as error:
            progress.refuse(item, str(error))
        else:
            items.append(item)
            labels.append(label)
            found.append((mode, height, width))
    rows = rows_of(items, found)
    return Result(Batch(images[: len(items)], rows), _set_labels(rows, labels, shard))


def _from_pixels(
    shard: Shard, form: Form, progress: Progress, pictures: arrays.Pictures, labels: Sequence[str | None]
) -> Result:
    """Return rows of pixels uint8 [N, H, W, channels], of which some have no label."""
    known = [item for item, label in enumerate(labels) if label is not None]
    refused = {item for item, _ in progress.refused}
    for item in range(len(labels)):
        if labels[item] is None and item not in refused:
            progress.refuse(item, "has no label")
    progress.at = max(progress.at, len(labels))
    count, height, width, channels = pictures.shape
    if (height, width, channels) == (form.height, form.width, form.channels):
        chosen = pictures if len(known) == count else pictures[known]
        images = np.ascontiguousarray(chosen.transpose(0, 3, 1, 2))
        images = 255 - images if form.invert else images
    else:
        images = np.empty((len(known), form.channels, form.height, form.width), np.uint8)
        for place, item in enumerate(known):
            progress.begins(item)
            picture = Image.fromarray(pictures[item, :, :, 0] if channels == 1 else pictures[item])
            images[place] = fit(picture.convert("L" if form.channels == 1 else "RGB"), form)
    rows = rows_of(known, [("L" if channels == 1 else "RGB", height, width)])
    return Result(Batch(images, rows), _set_labels(rows, [str(labels[item]) for item in known], shard))


def rows_of(items: Sequence[int], found: Sequence[tuple[str, int, int]]) -> arrays.Rows:
    """Return rows of the samples numbered `items`, of these modes, heights and widths; one alone stands for all."""
    rows = np.zeros(len(items), ROW)
    rows["item"] = items
    modes = {mode: number for number, mode in enumerate(MODES)}
    if items:
        table = np.asarray([(modes.get(mode, 0), height, width) for mode, height, width in found], dtype=np.int64)
        rows["mode"], rows["height"], rows["width"] = table.T if len(table) > 1 else table[0]
    return rows


def _set_labels(rows: arrays.Rows, labels: Sequence[str], shard: Shard) -> tuple[str, ...]:
    """Set the labels of rows, and the side that holds for all; return the class names by the numbers of the labels."""
    names = tuple(dict.fromkeys(labels))
    numbers = {name: number for number, name in enumerate(names)}
    rows["label"] = [numbers[label] for label in labels]
    rows["side"] = shard.side(0)
    return names


READERS: Final[Mapping[Kind, Callable[[Shard, Form, Progress], Result]]] = {
    "files": read_files, "arrays": read_arrays, "pixels": read_pixels, "parquet": read_parquet,
}  # fmt: skip


def probe_shard(shard: Shard, progress: Progress) -> list[Probe]:
    """Return the probe of each picture of a task that can be read."""
    found: list[Probe] = []
    if shard.kind in ("arrays", "pixels"):
        pictures, _ = arrays.read(shard) if shard.kind == "arrays" else pixels.read(shard, progress)
        return [probe_pixels(np.repeat(one, 3, 2) if one.shape[2] == 1 else one, *one.shape[:2]) for one in pictures]
    folder = Folder(shard.path)
    items = shard.files if shard.kind == "files" else (data for data, _ in parquet.read(shard))
    for item, each in enumerate(items):
        if not progress.begins(item):
            continue
        try:
            found.append(probe(folder.read(each)[0] if isinstance(each, str) else each or b""))
        except Unusable as error:
            progress.refuse(item, str(error))
        except OSError as error:
            progress.refuse(item, f"cannot be read ({error.strerror})")
    folder.close()
    return found
