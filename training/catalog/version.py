"""A version of an imported data set: the content of its manifest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from typing import Final

from pydantic import JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass

from preflight.contract.spec import STRICT
from preflight.errors import InvalidConfig

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
REFERENCE: Final = re.compile(rf"({NAME.pattern})(?:@([1-9][0-9]{{0,5}}))?")


@plain_dataclass(frozen=True, slots=True)
class Reference:
    """A data set as a job names it: `photos`, or `photos@2`."""

    name: str
    version: int | None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Return the reference in a text; raises `InvalidConfig`."""
        found = REFERENCE.fullmatch(text)
        if found is None:
            raise InvalidConfig(
                f"{text[:80]!r} names no data set; write NAME or NAME@2, with up to 64 small letters, digits and ._- "
                "in NAME",
                field="dataset",
            )
        return cls(found[1], int(found[2]) if found[2] else None)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ClassCount:
    """Samples of a class."""

    name: str
    train: int
    """Training samples without those that validate."""
    validation: int
    test: int


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Version:
    """A version of an imported data set."""

    v: int = 1
    name: str
    version: int
    sha256: str
    """SHA-256 of the content, as `content_sha256` computes it."""
    created_at: str
    source: str
    """Source that was imported, without secrets."""
    kind: str
    """Kind of the source, in words."""
    shape: tuple[int, int, int]
    classes: tuple[ClassCount, ...]
    asked: dict[str, JsonValue]
    """Options of the import."""
    report: dict[str, JsonValue]
    """Findings of the import: see docs/how-to/data.md."""

    @property
    def reference(self) -> str:
        """Name and number, as `photos@2`."""
        return f"{self.name}@{self.version}"

    @property
    def former(self) -> list[str]:
        """SHA-256 of the contents that the version had before samples were deleted, the newest last."""
        notes = self.report.get("erased")
        return [
            note["sha256"] for note in (notes if isinstance(notes, list) else [])
            if isinstance(note, dict) and isinstance(note["sha256"], str)
        ]  # fmt: skip

    @property
    def samples(self) -> int:
        """Samples in the store."""
        return sum(each.train + each.validation + each.test for each in self.classes)


VERSION: Final = TypeAdapter(Version)


def content_header(shape: Sequence[int], names: Sequence[str], counts: Sequence[int]) -> bytes:
    """Return the header that is hashed before the tensors: shape, class names, and the number of each part."""
    return json.dumps([list(shape), list(names), list(counts)], separators=(",", ":")).encode() + b"\n"


def content_sha256(header: bytes) -> hashlib._Hash:
    """Return the running SHA-256 of a content: its header, then the tensors as they lie in the store."""
    return hashlib.sha256(header)
