"""Names of this worker's data sets, published in Redis: `preflight enqueue` may run where only the client is."""

import time
from typing import Final

from redis import Redis

from preflight.client.datasets import DAY, MOST
from preflight.redis import keys
from training.catalog.names import known_datasets
from worker.config.settings import Settings

INTERVAL: Final = 60.0
"""Seconds between two looks at what was imported."""


class DatasetsChore:
    """Publishes the names of the data sets."""

    def __init__(self, connection: Redis, queue: str, settings: Settings) -> None:
        """Publish those below the data directory of `settings` for a queue."""
        self._connection = connection
        self._key = keys.datasets(queue)
        self._data_dir = settings.data_dir
        self._next_look = 0.0

    def due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() >= self._next_look

    def step(self) -> None:
        """Publish the names; raises `redis.exceptions.RedisError`."""
        now = f"{time.time():.0f}"
        names = known_datasets(self._data_dir)[:MOST]
        if names:
            pipe = self._connection.pipeline(transaction=True)
            pipe.hset(self._key, mapping=dict.fromkeys(names, now))
            pipe.expire(self._key, DAY)
            pipe.execute()
        self._next_look = time.monotonic() + INTERVAL
