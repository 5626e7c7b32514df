"""Parquet: pictures and labels of a part of a row group, read by pyarrow; only the two columns are read.

A row group may hold gigabytes: it is read in batches, and a child that gets its tasks in turn continues where the last
one ended, as Parquet reaches a row only through those before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from training.importing.shards import Shard

if TYPE_CHECKING:
    import pyarrow as pa

BATCH: Final = 64
"""Rows in memory at a time."""
BUFFER: Final = 1 << 20
"""Bytes of a column that are read at a time; without it, all of a row group."""


def read(shard: Shard) -> Iterator[tuple[bytes | None, str | None]]:
    """Yield the encoded picture and the label of each row of a task."""
    image, label, names = str(shard.extra["image"]), str(shard.extra["label"]), shard.extra["names"]
    is_struct = bool(shard.extra["struct"])
    image = image.removesuffix(".bytes") if is_struct else image
    known = names if isinstance(names, list) else []
    for part in RowGroup.of(shard).take(int(str(shard.extra["start"])), shard.count):
        cells = part.column(part.schema.get_field_index(image))
        pictures = (cells.field("bytes") if is_struct else cells).to_pylist()
        labels = part.column(part.schema.get_field_index(label)).to_pylist()
        yield from ((data, _named(value, known)) for data, value in zip(pictures, labels, strict=True))


class RowGroup:
    """A row group that is read from its first row to its last."""

    _last: RowGroup | None = None

    def __init__(self, key: tuple[str, int, str, str]) -> None:
        import pyarrow.parquet as pq

        path, group, image, label = self.key = key
        self._file = pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER)
        self._batches: Iterator[pa.RecordBatch] = self._file.iter_batches(
            batch_size=BATCH, row_groups=[group], columns=[image, label], use_threads=False
        )
        self._held: pa.RecordBatch | None = None
        self._at = 0
        """Number of the first row of the batch that is held."""

    @classmethod
    def of(cls, shard: Shard) -> RowGroup:
        """Return the row group of a task: the open one, unless that is past the task's first row."""
        extra = shard.extra
        key = shard.path, int(str(extra["group"])), str(extra["image"]), str(extra["label"])
        last = cls._last
        if last is None or last.key != key or last._at > int(str(extra["start"])):
            if last is not None:
                last._file.close()
            last = cls._last = cls(key)
        return last

    def take(self, start: int, count: int) -> Iterator[pa.RecordBatch]:
        """Yield rows from number `start` on, in batches."""
        while count:
            self._held = self._held or next(self._batches, None)
            if self._held is None:
                return
            if start >= self._at + self._held.num_rows:
                self._at, self._held = self._at + self._held.num_rows, None
                continue
            part = self._held.slice(start - self._at, count)
            start, count = start + part.num_rows, count - part.num_rows
            yield part


def _named(value: object, names: list[str]) -> str | None:
    if value is None:
        return None
    if names and isinstance(value, int):
        return names[value] if 0 <= value < len(names) else None
    return str(value)
