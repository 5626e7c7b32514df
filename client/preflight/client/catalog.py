"""What the workers of a queue say of their data sets and models: what a form can offer."""

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
"""Of what is said of one data set or model."""
DATASET: Final = "dataset "
"""How the field of a data set begins."""
MODEL: Final = "model "


class Offered(Wire):
    """What a worker says of a data set or a model; unknown figures are left out."""

    at: Count
    """When it said so, seconds since the epoch."""
    version: Label | None = None
    """Of imported data that is named without one: the version that the name stands for, as `photos@2`."""
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
    """What the workers of a queue have; empty where none has said anything."""

    datasets: Mapping[str, Offered]
    models: tuple[str, ...]


def read_catalog(connection: "Redis", queue: str) -> Catalog:
    """Return what workers said within a day; what is none of theirs is left out. Raises `RedisError`."""
    key = keys.catalog(queue)
    found = dict(_entries(connection.hgetall(key))) if 0 < connection.hlen(key) <= MOST else {}
    return Catalog(
        datasets={name.removeprefix(DATASET): each for name, each in found.items() if name.startswith(DATASET)},
        models=tuple(name.removeprefix(MODEL) for name in found if name.startswith(MODEL)),
    )


def _entries(stored: Mapping[bytes | str, bytes | str]) -> Iterator[tuple[str, Offered]]:
    """Yield what can be read of a catalog, sorted by name."""
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
