"""Source: the samples that an import reads."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

from preflight.errors import DatasetError
from training.importing.form import MAX_CLASS_NAME, MAX_CLASSES, MAX_SAMPLES
from training.importing.shards import Refused, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The samples of a source as tasks; nothing of them is decoded yet."""

    kind: str
    """Kind of the source in words: `folder of class folders`."""
    shards: tuple[Shard, ...]
    samples: int
    """Number of samples; 0: not known before they are read."""
    order: tuple[str, ...] = ()
    """Class names in their given order; empty: sorted."""
    refused: tuple[Refused, ...] = ()
    """Samples that are refused without decoding: links, for example."""
    ignored: int = 0
    """Files that are no samples."""
    notes: tuple[str, ...] = field(default=())


def refuse(message: str, field: str = "source") -> DatasetError:
    """Return the error for a source that cannot be imported."""
    return DatasetError(message, field=field)


def class_name(text: str) -> str:
    """Return a class name in Unicode's composed form without white space around it.

    Raises:
        DatasetError: it is empty, too long, a name of a directory, or has control characters.
    """
    name = unicodedata.normalize("NFC", text).strip()
    if len(name) > MAX_CLASS_NAME:
        raise refuse(
            f"a class name has {len(name)} characters ({name[:40]!r}...), but may have at most {MAX_CLASS_NAME}; "
            "shorten it",
            "label",
        )
    if name in ("", ".", ".."):
        raise refuse(f"a class is named {name!r}, which is no name; rename it", "label")
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        raise refuse(f"the class name {ascii(name)[:80]} has characters that cannot be shown; rename it", "label")
    return name


def check_classes(names: Iterable[str]) -> None:
    """Raise `DatasetError` where there are too many classes, one only, or two that differ in case alone."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.casefold(), name)
        if other != name:
            raise refuse(f"the classes {other!r} and {name!r} differ in case alone; rename one of them", "label")
    if len(known) > MAX_CLASSES:
        raise refuse(f"there are {len(known):,} classes, but at most {MAX_CLASSES:,} are imported", "label")
    if len(known) == 1:
        raise refuse(
            f"all samples are of one class, {next(iter(known.values()))!r}; give samples of two classes or more",
            "label",
        )


def check_samples(count: int) -> None:
    """Raise `DatasetError` where there are too many samples."""
    if count > MAX_SAMPLES:
        raise refuse(f"there are {count:,} samples, but at most {MAX_SAMPLES:,} are imported; leave some out")


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return class names sorted: as numbers where all are, else as text, as torchvision's ImageFolder does."""
    found = sorted(set(names))
    if all(name.isascii() and name.isdigit() for name in found):
        found.sort(key=int)
    return tuple(found)
