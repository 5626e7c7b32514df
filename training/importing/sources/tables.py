"""Pictures with a table of labels: CSV or JSON, as exports of labelling tools have them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from training.importing.form import Options
from training.importing.shards import ANY, EXAMPLES, Refused
from training.importing.sources.base import Source, check_classes, check_samples, class_name, in_order, refuse
from training.importing.sources.trees import SPLITS, Listing, entries, in_shards, walk

TABLES: Final = re.compile(
    r"(labels?|metadata|annotations?|_?classes|data|train|project.*)\.(csv|tsv|json|jsonl|ndjson)", re.I
)
"""Names of tables."""
FILE_COLUMNS: Final = (
    "file",
    "filename",
    "file_name",
    "image",
    "image_path",
    "path",
    "filepath",
    "img",
    "picture",
    "id",
)
LABEL_COLUMNS: Final = ("label", "class", "choice", "category", "target", "y", "labels", "class_name", "sentiment")
SPLIT_COLUMNS: Final = ("split", "set", "subset", "usage")
LARGEST_TABLE: Final = 1 << 30
"""Most bytes of a table."""
UPLOAD: Final = re.compile(r"^[0-9a-f]{8}-")
"""Prefix that Label Studio puts before the name of a file."""

Row = Mapping[str, str]


@dataclass(slots=True)
class Table:
    """Samples that the rows of a table name, and rows that are refused."""

    files: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    sides: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def refuse(self, reason: str, where: str) -> None:
        """Leave a row out."""
        self.refused[reason] += 1
        self.examples.setdefault(reason, [])
        if len(self.examples[reason]) < EXAMPLES:
            self.examples[reason].append(where)


def find_table(root: Path) -> Path | None:
    """Return the table of a folder that has pictures; None where there is none."""
    _, others = entries(root)
    found = [root / name for name in others if TABLES.fullmatch(name)]
    found = found or [root / name for name in others if name.lower().endswith((".csv", ".tsv", ".jsonl", ".json"))][:1]
    return next((path for path in sorted(found) if not path.is_symlink() and _names_files(path)), None)


def _names_files(path: Path) -> bool:
    """Whether the first row of a table names a picture and its class."""
    try:
        first = next(iter(_rows(path, 64 << 10)), None)
        return first is not None and _columns(first[1], None) is not None
    except (ValueError, OSError):
        return False


def read_table(root: Path, path: Path, options: Options) -> Source:
    """Return the samples that a table names, below `root`.

    Raises:
        DatasetError: the table cannot be read, or names no pictures.
    """
    listing = Listing()
    walk(str(root), "", listing)
    where = Places(listing.files)
    table, columns = Table(), None
    try:
        for line, row in _rows(path, LARGEST_TABLE):
            columns = columns or _columns(row, options.group)
            if columns is None:
                raise refuse(
                    f"{path.name} has the columns {', '.join(row)[:200]}, of which none names the picture and its "
                    f"class; name them file and label"
                )
            _add(table, row, columns, where, f"{path.name}, line {line}")
    except (ValueError, RecursionError) as error:
        raise refuse(f"{path.name} cannot be read as a table ({str(error)[:200]}); save it as UTF-8") from error
    except OSError as error:
        raise refuse(f"{path} cannot be read ({error.strerror})") from error
    if not table.files:
        raise refuse(f"{path.name} names no picture that lies in {root}")
    check_samples(len(table.files))
    names = in_order(table.labels)
    check_classes(names)
    numbers = {name: number for number, name in enumerate(names)}
    labels = [numbers[label] for label in table.labels]
    groups = tuple(table.groups) if options.group else ()
    refused = [
        Refused(reason=reason, count=count, files=tuple(table.examples[reason]))
        for reason, count in table.refused.items()
    ]
    return Source(
        kind=f"pictures with {path.name}",
        shards=tuple(in_shards(root, table.files, labels, table.sides, names, groups)),
        samples=len(table.files), refused=(*listing.refused(), *refused),
        ignored=listing.ignored - 1 + len(listing.files) - len(set(table.files)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a table that are read."""

    file: str
    label: str
    split: str | None
    group: str | None


def _columns(row: Row, group: str | None) -> Columns | None:
    """Return the columns of a table; raises `DatasetError` where that of the groups is missing."""
    lower = {name.strip().lower(): name for name in row}
    file = next((lower[name] for name in FILE_COLUMNS if name in lower), None)
    label = next((lower[name] for name in LABEL_COLUMNS if name in lower), None)
    if file is None or label is None:
        return None
    if group is not None and group not in row:
        raise refuse(f"--group is {group!r}, but the columns are {', '.join(row)[:200]}; name one of them", "group")
    return Columns(file, label, next((lower[name] for name in SPLIT_COLUMNS if name in lower), None), group)


def _add(table: Table, row: Row, columns: Columns, where: Places, line: str) -> None:
    name, label = row.get(columns.file, "").strip(), row.get(columns.label, "").strip()
    if None in row or not name or columns.label not in row:
        table.refuse("has another number of columns than the first row", line)
        return
    if not label:
        table.refuse("has no label", line)
        return
    file = where.find(name)
    if file is None:
        table.refuse("is named in the table but is not in the folder", name[:200])
        return
    side = row.get(columns.split or "", "").strip().lower()
    if side and side not in SPLITS:
        table.refuse(f"has the split {side[:40]!r}, which is none of train, validation and test", line)
        return
    table.files.append(file)
    table.labels.append(class_name(label))
    table.sides.append(SPLITS.get(side, ANY))
    table.groups.append(row.get(columns.group or "", ""))


class Places:
    """The pictures of a folder by their paths and by their names."""

    def __init__(self, files: list[str]) -> None:
        self._paths = set(files)
        names = Counter(path.rpartition("/")[2] for path in files)
        self._names = {name: path for path in files if names[name := path.rpartition("/")[2]] == 1}

    def find(self, name: str) -> str | None:
        """Return the path below the folder of a picture that a table names; None: it is not there."""
        path = name.replace("\\", "/").removeprefix("./")
        if path in self._paths:
            return path
        last = path.partition("?")[0].rpartition("/")[2]
        return self._names.get(last) or self._names.get(UPLOAD.sub("", last))


def _rows(path: Path, most: int) -> Iterator[tuple[int, Row]]:
    """Yield the number of each line and its columns; raises `ValueError`, `OSError`."""
    with path.open("rb") as file:
        text = file.read(most + 1)
    if len(text) > most:
        if most == LARGEST_TABLE:
            raise ValueError(f"it has more than {LARGEST_TABLE >> 20} MiB")
        text = text[: text.rfind(b"\n") + 1]
    decoded = text.decode("utf-8-sig")
    if path.suffix.lower() in (".csv", ".tsv"):
        first = decoded.partition("\n")[0]
        delimiter = max(",;\t|", key=first.count)
        reader = csv.DictReader(io.StringIO(decoded, newline=""), delimiter=delimiter, restval=None)
        for row in reader:
            yield (
                reader.line_num,
                {name: value for name, value in row.items() if isinstance(value, str) or name is None},
            )
        return
    if decoded.lstrip().startswith("["):
        objects: Iterator[tuple[int, object]] = enumerate(json.loads(decoded), 1)
    else:
        objects = ((line, json.loads(one)) for line, one in enumerate(decoded.splitlines(), 1) if one.strip())
    for line, found in objects:
        if not isinstance(found, dict):
            raise ValueError(f"entry {line} is no object")
        yield line, {str(name): _scalar(value) for name, value in found.items()}


def _scalar(value: object) -> str:
    """Return a value of JSON as text; Label Studio has a choice as {"choices": [...]}, where there may be several."""
    if isinstance(value, dict):
        value = value.get("choices", "")
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else ""
    return "" if value is None or isinstance(value, dict | list) else str(value)
