"""Parquet: pictures and labels of a part of a row group, read by pyarrow; only the two columns are read."""

from __future__ import annotations

from training.importing.shards import Shard


def read(shard: Shard) -> tuple[list[bytes | None], list[str | None]]:
    """Return the encoded pictures of a task, and their labels."""
    import pyarrow.parquet as pq

    extra = shard.extra
    image, label, names = str(extra["image"]), str(extra["label"]), extra["names"]
    encoded: list[bytes | None] = []
    labels: list[str | None] = []
    skip, left = int(str(extra["start"])), shard.count
    with pq.ParquetFile(shard.path, pre_buffer=False) as file:
        for batch in file.iter_batches(
            batch_size=256, row_groups=[int(str(extra["group"]))], columns=[image, label], use_threads=False
        ):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            part = batch.slice(skip, left)
            skip, left = 0, left - part.num_rows
            cells = part.column(part.schema.get_field_index(image.partition(".")[0]))
            encoded += (cells.field("bytes") if bool(extra["struct"]) else cells).to_pylist()
            labels += [
                _named(value, names if isinstance(names, list) else [])
                for value in part.column(part.schema.get_field_index(label)).to_pylist()
            ]
            if not left:
                break
    return encoded, labels


def _named(value: object, names: list[str]) -> str | None:
    if value is None:
        return None
    if names and isinstance(value, int):
        return names[value] if 0 <= value < len(names) else None
    return str(value)
