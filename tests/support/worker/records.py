"""Records that a training writes, kept in memory."""

from typing import Final

from pydantic import JsonValue

DURABLE: Final = {"epoch", "resumed"}
"""Kinds of records that a training writes through to the disk."""


class Records:
    """A record writer that keeps the records."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, JsonValue]]] = []

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        assert durable == (kind in DURABLE)
        self.written.append((kind, payload))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.written]

    def of(self, kind: str) -> list[dict[str, JsonValue]]:
        return [payload for each, payload in self.written if each == kind]


def number(value: JsonValue) -> float:
    assert isinstance(value, int | float)
    return float(value)
