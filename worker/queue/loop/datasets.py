"""Data sets, models and limits of this worker in Redis: forms and `preflight enqueue` run where only the client is."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from redis import Redis

from preflight.client.catalog import DATASET, MAX_BYTES, MODEL, Offered
from preflight.client.datasets import DAY, MOST
from preflight.contract.registry import MODELS, names
from preflight.redis import keys
from preflight.redis.replies import text
from training.catalog.catalog import Catalog
from training.catalog.names import Facts, describe, known_datasets
from worker.admission.limits import limits_of
from worker.config.settings import Settings

INTERVAL: Final = 20.0
"""Seconds between two looks at the data sets."""
RENEWAL: Final = 120.0
"""Seconds after which unchanged facts are published again: somebody may have emptied Redis."""


class DatasetsChore:
    """Publishes data sets, models and limits."""

    def __init__(self, connection: Redis, queue: str, worker: str, settings: Settings) -> None:
        """Publish those of `settings` for a queue, in the name of `worker`."""
        self._connection = connection
        self._key = keys.datasets(queue)
        self._catalog = keys.catalog(queue)
        self._worker = keys.rq_worker(worker)
        self._settings = settings
        self._known: dict[str, tuple[int, Facts]] = {}
        """Facts of versions, and when their manifests were written."""
        self._published: tuple[Mapping[str, Facts | None], str] | None = None
        self._next_look = self._next_renewal = 0.0

    def due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() >= self._next_look

    def step(self) -> None:
        """Publish data sets, models and limits where they have changed; raises `redis.exceptions.RedisError`."""
        found = {name: self._described(name) for name in known_datasets(self._settings.data_dir)[:MOST]}
        limits, moment = limits_of(self._settings), time.monotonic()
        if (found, limits) != self._published or moment >= self._next_renewal:
            self._publish(found, limits)
            self._published, self._next_renewal = (found, limits), moment + RENEWAL
        self._next_look = moment + INTERVAL

    def _publish(self, found: Mapping[str, Facts | None], limits: str) -> None:
        now = int(time.time())
        size = self._connection.hlen(self._catalog)
        outdated = self._outdated(now) if 0 < size <= MOST else []
        pipe = self._connection.pipeline(transaction=True)
        if found:
            pipe.hset(self._key, mapping=dict.fromkeys(found, f"{now}"))
            pipe.expire(self._key, DAY)
        if size > MOST:  # nobody of ours wrote that much
            pipe.delete(self._catalog)
        elif outdated:
            pipe.hdel(self._catalog, *outdated)
        offered = dict(self._offered(found, now))
        if offered:
            pipe.hset(self._catalog, items=[part for pair in offered.items() for part in pair])
            pipe.expire(self._catalog, DAY)
        pipe.hset(self._worker, keys.LIMITS, limits)
        pipe.execute()

    def _outdated(self, now: int) -> list[bytes | str]:
        """Return fields of the catalog that no worker has renewed for a day, or that none wrote."""
        stored = self._connection.hgetall(self._catalog)
        return [name for name, said in stored.items() if _said_at(said) <= now - DAY]

    def _offered(self, found: Mapping[str, Facts | None], now: int) -> Iterator[tuple[str, str]]:
        """Yield the fields of the catalog."""
        for name, facts in found.items():
            said = Offered(at=now) if facts is None else Offered(
                at=now, version=None if facts.name == name else facts.name, train=facts.train, test=facts.test,
                classes=facts.classes, shape=facts.shape, validation=facts.validation,
            )  # fmt: skip
            encoded = said.model_dump_json(exclude_none=True)
            if len(encoded) <= MAX_BYTES:
                yield f"{DATASET}{name}", encoded
        for name in names(MODELS):
            yield f"{MODEL}{name}", Offered(at=now).model_dump_json(exclude_none=True)

    def _described(self, name: str) -> Facts | None:
        """Return the facts of a data set; those of a version are read again where samples of it were deleted."""
        data_set, _, number = name.partition("@")
        written = 0
        with suppress(OSError):
            written = Catalog(self._settings.data_dir).manifest(data_set, int(number or 0)).stat().st_mtime_ns
        known = self._known.get(name)
        if known is not None and known[0] == written:
            return known[1]
        facts = describe(name, self._settings.data_dir, self._settings.cache_dir)
        if facts is not None and facts.name == name and number:
            self._known[name] = written, facts
        return facts


def _said_at(said: bytes | str) -> int:
    try:
        return Offered.model_validate_json(text(said)[:MAX_BYTES], extra="ignore").at
    except ValueError:
        return 0
