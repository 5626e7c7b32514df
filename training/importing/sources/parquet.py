"""Parquet: a column of encoded pictures and one of labels, as exports of Hugging Face have them.

Several files are one data set.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preflight.errors import MissingPackage
from preflight.packages import how_to_install
from training.importing.shards import ANY, Shard
from training.importing.sources.base import Source, check_samples, class_name, refuse
from training.importing.sources.files import start_of
from training.importing.sources.trees import SPLITS, is_hidden

if TYPE_CHECKING:
    import pyarrow as pa

TASK: Final = 2_000
"""Rows of a task."""
LABELS: Final = ("label", "labels", "class", "target", "fine_label", "category", "digit")
IMAGES: Final = ("image", "img", "picture", "png", "jpg", "jpeg", "bytes")
MAX_FILES: Final = 10_000


def parquet_files(root: Path) -> list[Path]:
    """Return the Parquet files in a folder and below, in the order of their names."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        found += [Path(folder, name) for name in sorted(names) if name.lower().endswith(".parquet")]
        if len(found) > MAX_FILES:
            raise refuse(f"{root} has more than {MAX_FILES:,} Parquet files")
    return [path for path in found if not path.is_symlink() and not is_hidden(path.name)]


def is_parquet(path: Path) -> bool:
    """Whether a file begins like a Parquet file."""
    return start_of(path, 4) == b"PAR1"


def read_parquet(paths: list[Path]) -> Source:
    """Return the samples of Parquet files, of which only the schemas are read.

    Raises:
        MissingPackage: pyarrow is not installed.
        DatasetError: a file is damaged, or has no pictures or labels.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingPackage(f"pyarrow is not installed, and Parquet needs it; {how_to_install('parquet')}") from error
    shards: list[Shard] = []
    names: list[str] = []
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                image, is_struct = _image_column(file.schema_arrow, path.name)
                label = _label_column(file.schema_arrow, path.name)
                names = names or _class_names(file.schema_arrow, label)
                counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        except (pa.ArrowException, OSError) as error:
            raise refuse(f"{path.name} cannot be read as Parquet ({str(error)[:200]})") from error
        column = f"{image}.bytes" if is_struct else image
        first = 0
        for group, count in enumerate(counts):
            for start in range(0, count, TASK):
                shards.append(
                    Shard(
                        kind="parquet", path=str(path), first=first + start, count=min(TASK, count - start),
                        sides=(_side(path),),
                        extra={"group": group, "start": start, "image": column, "struct": is_struct, "label": label,
                               "names": names},
                    )
                )  # fmt: skip
            first += count
    samples = sum(shard.count for shard in shards)
    if not samples:
        raise refuse(f"{paths[0].name} has no rows")
    check_samples(samples)
    return Source(
        kind="Parquet", shards=tuple(shards), samples=samples, order=tuple(dict.fromkeys(map(class_name, names)))
    )


def _side(path: Path) -> int:
    """Return the side of a file that is named as `train-00000-of-00004.parquet`, or lies in a folder of its split."""
    words = (re.split(r"[-_.]", path.name.lower())[0], path.parent.name.lower())
    return next((SPLITS[word] for word in words if word in SPLITS), ANY)


def _image_column(schema: pa.Schema, name: str) -> tuple[str, bool]:
    """Return the column of the pictures, and whether it is a struct of bytes and path; raises `DatasetError`."""
    import pyarrow.types as types

    found = []
    for field in schema:
        is_struct = types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
        encoded = field.type.field("bytes").type if is_struct else field.type
        if types.is_binary(encoded) or types.is_large_binary(encoded):
            found.append((field.name, is_struct))
    found.sort(key=lambda column: (column[0].lower() not in IMAGES, not column[1]))
    if not found:
        columns = ", ".join(f"{field.name}: {str(field.type)[:40]}" for field in schema)[:300]
        raise refuse(
            f"{name} has no column of encoded pictures (binary, or a struct with bytes) at its top level, but {columns}"
        )
    return found[0]


def _label_column(schema: pa.Schema, name: str) -> str:
    """Return the column of the labels; raises `DatasetError`."""
    import pyarrow.types as types

    known = {field.name.lower(): field for field in schema}
    for word in LABELS:
        field = known.get(word)
        if field is not None and (types.is_integer(field.type) or types.is_string(field.type)
                                  or types.is_large_string(field.type) or types.is_dictionary(field.type)):  # fmt: skip
            return str(field.name)
    raise refuse(f"{name} has no column of labels, but {', '.join(schema.names)[:300]}; name that of the classes label")


def _class_names(schema: pa.Schema, label: str) -> list[str]:
    """Return the names of the classes from the metadata of Hugging Face; none where it has none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        feature = features[label]
        return [str(each) for each in feature["names"]] if feature.get("_type") == "ClassLabel" else []
    except (KeyError, ValueError, TypeError, AttributeError):
        return []
