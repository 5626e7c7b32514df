"""Pictures with a table of labels: CSV or JSON, as exports of labelling tools have them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
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
HEAD: Final = 64 << 10
"""Bytes at the start of a table in which its columns are found."""
SPACE: Final = re.compile(r"\s*")
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
    """Whether a table has columns for a picture and its class."""
    try:
        names, _ = _opened(path, HEAD)
    except UnicodeError:  # `read_table` refuses it by name; without that the folder would have no labels
        return TABLES.fullmatch(path.name) is not None
    except (ValueError, RecursionError, OSError):
        return False
    return _has_both(names)


def read_table(root: Path, path: Path, options: Options) -> Source:
    """Return the samples that a table names, below `root`.

    Raises:
        DatasetError: the table cannot be read, or names no pictures.
    """
    listing = Listing()
    walk(str(root), "", listing)
    where = Places(listing.files)
    table = Table()
    try:
        header, rows = _opened(path, LARGEST_TABLE)
        columns = _columns(header, options.group, path.name)
        for line, row in rows:
            _add(table, row, columns, where, f"{path.name}, line {line}")
    except (ValueError, RecursionError) as error:
        remedy = "save it as UTF-8" if isinstance(error, UnicodeError) else "correct it"
        raise refuse(f"{path.name} cannot be read as a table ({str(error)[:200]}); {remedy}") from error
    except OSError as error:
        raise refuse(f"{path} cannot be read ({error.strerror})") from error
    if not table.files:
        why = "".join(
            f" ({count:,}: {reason}, {table.examples[reason][0]} first)"
            for reason, count in table.refused.most_common(1)
        )
        raise refuse(f"{path.name} has no row that can be used{why}; correct it")
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


def _has_both(names: Iterable[str]) -> bool:
    """Whether there are columns for the picture and for its class."""
    lower = {name.strip().lower() for name in names}
    return not lower.isdisjoint(FILE_COLUMNS) and not lower.isdisjoint(LABEL_COLUMNS)


def _columns(names: list[str], group: str | None, where: str) -> Columns:
    """Return the columns of a table; raises `DatasetError` where one is missing, or is there twice."""
    shown = ", ".join(names)[:200]
    if not _has_both(names):
        raise refuse(
            f"{where} has the columns {shown}, of which none names the picture and its class; name them file and label"
        )
    if group is not None and group not in names:
        raise refuse(f"--group is {group!r}, but the columns are {shown}; name one of them", "group")
    lower = [name.strip().lower() for name in names]
    read = [
        names[lower.index(found)] if (found := next((name for name in known if name in lower), None)) else None
        for known in (FILE_COLUMNS, LABEL_COLUMNS, SPLIT_COLUMNS)
    ]
    for name in (*read, group):
        if name is not None and lower.count(name.strip().lower()) > 1:
            raise refuse(f"{where} has several columns named {name.strip()}; rename all but one of them")
    file, label, split = read
    return Columns(file or "", label or "", split, group)


def _add(table: Table, row: Row | None, columns: Columns, where: Places, line: str) -> None:
    if row is None or columns.label not in row or not (name := row.get(columns.file, "").strip()):
        table.refuse("has another number of columns than the first row", line)
        return
    label = row[columns.label].strip()
    if not label:
        table.refuse("has no label", line)
        return
    file = where.find(name)
    if file is None:
        table.refuse("is named in the table but is not in the folder", name[:200])
        return
    side = "" if columns.split is None else row.get(columns.split, "").strip().lower()
    if side and side not in SPLITS:
        table.refuse(f"has the split {side[:40]!r}, which is none of train, validation and test", line)
        return
    table.files.append(file)
    table.labels.append(class_name(label))
    table.sides.append(SPLITS.get(side, ANY))
    table.groups.append("" if columns.group is None else row.get(columns.group, ""))


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


def _opened(path: Path, most: int) -> tuple[list[str], Iterator[tuple[int, Row | None]]]:
    """Return the names of a table's columns, and its lines; raises `ValueError`, `RecursionError`, `OSError`."""
    with path.open("rb") as file:
        text = file.read(most + 1)
    if len(text) > most:
        if most == LARGEST_TABLE:
            raise ValueError(f"it has more than {LARGEST_TABLE >> 20} MiB")
        text = text[: max(text.rfind(b"\n"), text.rfind(b"}")) + 1]
    decoded = text.decode("utf-8-sig")
    if path.suffix.lower() not in (".csv", ".tsv"):
        return _json(decoded)
    rows = _csv_rows(decoded)
    _, header = next(rows, (0, []))
    return header, (
        (line, dict(zip(header, cells, strict=False)) if len(cells) <= len(header) else None) for line, cells in rows
    )


def _csv_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each line that is not empty and its cells; raises `ValueError`."""
    first = text.lstrip().partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t|", key=first.count), strict=True)
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:  # a quote that is not closed would take all lines behind it into one cell
        raise ValueError(f"line {reader.line_num}: {error}; a quote may be open") from error


def _json(text: str) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """Return the names of the columns up to the first entry with a picture and its class, and all entries."""
    rows = _entries(text)
    names: dict[str, None] = {}
    first = []
    while not _has_both(names) and (entry := next(rows, None)) is not None:
        first.append(entry)
        names |= dict.fromkeys(entry[1])
    return [*names], chain(first, rows)


def _entries(text: str) -> Iterator[tuple[int, Row]]:
    """Yield the number of each object, in a list or one a line, and its values; raises `ValueError`."""
    if text.lstrip().startswith("["):
        objects: Iterator[tuple[int, object]] = enumerate(_items(text), 1)
    else:
        objects = ((line, json.loads(one)) for line, one in enumerate(text.splitlines(), 1) if one.strip())
    for line, found in objects:
        if not isinstance(found, dict):
            raise ValueError(f"entry {line} is no object")
        yield line, {str(name): _scalar(value) for name, value in found.items()}


def _items(text: str) -> Iterator[object]:
    """Yield the items of a list, one at a time, as the text may end within it."""
    decoder, at = json.JSONDecoder(), text.index("[")
    while text[at : at + 1] in ("[", ","):
        found, at = decoder.raw_decode(text, _behind_space(text, at + 1))
        yield found
        at = _behind_space(text, at)
    if text[at:].strip() != "]":
        raise ValueError(f"at character {at:,} there is neither a comma nor the end of the list")


def _behind_space(text: str, at: int) -> int:
    found = SPACE.match(text, at)
    return at if found is None else found.end()


def _scalar(value: object) -> str:
    """Return a value of JSON as text; Label Studio has a choice as {"choices": [...]}, where there may be several."""
    if isinstance(value, dict):
        value = value.get("choices", "")
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else ""
    return "" if value is None or isinstance(value, dict | list) else str(value)
