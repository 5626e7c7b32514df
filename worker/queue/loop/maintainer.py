"""Maintainers: the few workers that look after a queue for all, whether they run a job or not.

They observe leases, enqueue scheduled jobs and release dependents. Several do so, on several hosts where there are, so
that the death of one delays nothing: the others have observed all the time. Nothing depends on their number for its
correctness: each step is safe when two take it.
"""

import random
import time
from typing import Final

from pydantic import TypeAdapter
from redis import Redis
from rq import Queue

from preflight.redis import keys
from preflight.redis.lua import run_script

MAINTAINERS: Final = 3
"""Number of maintainers of a queue; as many again where some of its workers run without a scheduler."""
PLACE_SECONDS: Final = 25.0
"""Seconds after which the place of a maintainer that died is free."""
RENEWAL_INTERVAL: Final = 10.0
"""Seconds between two renewals of a place."""
CLAIM_INTERVAL: Final = 60.0
"""Seconds after which a worker tries for a place although all are taken: one host may hold all."""

PLACE = TypeAdapter(int)


class Maintainer:
    """Whether one worker is a maintainer. Its methods raise `redis.exceptions.RedisError`, and may be called again."""

    def __init__(self, connection: Redis, queue: Queue, worker: str, *, with_scheduler: bool) -> None:
        """Try for a place in the name of `worker`; those without a scheduler have separate places."""
        self._connection = connection
        self._worker = worker
        self._host = worker.rsplit(".", 2)[0]
        self._places = [keys.maintainer(queue.name, with_scheduler, number) for number in range(MAINTAINERS)]
        scheduled = [queue.scheduled_job_registry.key, keys.rq_ready(queue.name)] if with_scheduler else []
        self._work = [
            queue.started_job_registry.key, queue.intermediate_queue_key, keys.ended(queue.name),
            keys.deletions(queue.name), *scheduled,
        ]  # fmt: skip
        self._place: str | None = None
        self._next_renewal = 0.0
        self._next_claim = 0.0

    @property
    def is_active(self) -> bool:
        """Whether this worker is a maintainer, as far as it knows."""
        return self._place is not None

    @property
    def watched(self) -> list[str]:
        """Keys whose existence this worker watches: where there is work for a maintainer, or the places of the others.

        How many exist is given to `look`.
        """
        return self._work if self._place else self._places

    def look(self, exist: int) -> bool:
        """Return whether this worker has something to maintain now; takes or renews a place where that is due."""
        now = time.monotonic()
        if self._place is None:
            if exist < MAINTAINERS or now >= self._next_claim:
                self._claim(now)
            return self._place is not None
        still_held = now < self._next_renewal or self._renew(self._place, now)
        return still_held and exist > 0

    def release(self) -> None:
        """Give up the place."""
        if self._place is not None:
            run_script(
                self._connection, "maintenance/release", TypeAdapter(list[int]), keys=[self._place], args=[self._worker]
            )
            self._place = None

    def _claim(self, now: float) -> None:
        number = run_script(
            self._connection, "maintenance/take_place", PLACE, keys=self._places,
            args=[self._worker, self._host, int(1000 * PLACE_SECONDS)],
        )  # fmt: skip
        self._place = self._places[number - 1] if number else None
        self._next_renewal = now + _spread(RENEWAL_INTERVAL)
        self._next_claim = now + _spread(CLAIM_INTERVAL)

    def _renew(self, place: str, now: float) -> bool:
        """Renew the place; returns False where another worker has taken it."""
        held = run_script(
            self._connection, "maintenance/renew_place", PLACE, keys=[place],
            args=[self._worker, int(1000 * PLACE_SECONDS)],
        )  # fmt: skip
        self._next_renewal = now + _spread(RENEWAL_INTERVAL)
        if not held:
            self._place = None
        return self._place is not None


def _spread(seconds: float) -> float:
    return random.uniform(0.8, 1.2) * seconds  # noqa: S311 - it only has to differ from that of other workers
