"""Data sets and models that the workers of a queue publish, for the choices of a form."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, ValidationError

from preflight.client.datasets import DAY, LONGEST, MOST
from preflight.redis import keys
from preflight.redis.replies import text
from preflight.wire import Count, Label
from preflight.wire.base import Wire

if TYPE_CHECKING:
    from redis import Redis

MAX_BYTES: Final = 512
"""Most bytes of the entry of one data set or model."""
DATASET: Final = "dataset "
"""Prefix of a data set's field in the hash."""
MODEL: Final = "model "


class Offered(Wire):
    """A worker's entry for a data set or a model; unknown figures are left out."""

    at: Count
    """Time of the entry, seconds since the epoch."""
    version: Label | None = None
    """Version that the name of imported data stands for where it has none, as `photos@2`."""
    train: Count | None = None
    """Training samples, those for validation included."""
    test: Count | None = None
    validation: Count | None = None
    """Last training samples that validate by default; left out: as many as usual."""
    classes: Count | None = None
    shape: Annotated[tuple[Count, Count, Count] | None, Field(strict=False)] = None
    """Channels, height and width of an image."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Data sets and models of a queue's workers; empty where none has published any."""

    datasets: Mapping[str, Offered]
    models: tuple[str, ...]


def read_catalog(connection: "Redis", queue: str) -> Catalog:
    """Return the entries of the last day, without invalid ones. Raises `RedisError`."""
    key = keys.catalog(queue)
    found = dict(_entries(connection.hgetall(key))) if 0 < connection.hlen(key) <= MOST else {}
    return Catalog(
        datasets={name.removeprefix(DATASET): each for name, each in found.items() if name.startswith(DATASET)},
        models=tuple(name.removeprefix(MODEL) for name in found if name.startswith(MODEL)),
    )


def _entries(stored: Mapping[bytes | str, bytes | str]) -> Iterator[tuple[str, Offered]]:
    """Yield the valid entries of a catalog, sorted by name."""
    oldest = time.time() - DAY
    for name, value in sorted((text(raw), value) for raw, value in stored.items()):
        if not name.isascii() or len(name) > len(DATASET) + LONGEST or len(value) > MAX_BYTES:
            continue
        try:
            said = Offered.model_validate_json(value, extra="ignore")
        except ValidationError:
            continue
        if said.at > oldest:
            yield name, said
