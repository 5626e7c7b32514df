"""What a check has, and what it yields."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from tools.bench.containers.stack import Docker, Failed, Stack

PORT: Final = 18_000
"""Port of this host's loopback for the page of the stack under test."""


@dataclass(frozen=True, slots=True)
class Row:
    """One finding; `good` is None where there is no bound."""

    what: str
    found: str
    bound: str = ""
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """Container engine and data of the checks."""

    docker: Docker
    data: Path
    """Directory with the four files of MNIST."""

    def stack(self, name: str, cpus: float, memory: str) -> Stack:
        """Return a separate stack."""
        return Stack(self.docker, f"preflight-{name}", cpus=cpus, memory=memory, port=PORT)


Check = Callable[[Host], Iterator[Row]]


def number(value: JsonValue) -> float:
    """Return a number of an answer."""
    if not isinstance(value, int | float):
        raise Failed(f"{value!r} is no number")
    return float(value)
