"""Scheduler: enqueues the jobs whose time has come, for one queue, under RQ's lock.

RQ's own scheduler reads each job with RQ's code and ends at the first that is malformed, so that one hostile job would
stop all schedules of the queue. This one reads a status, a side and a rate limit, in one script.
"""

import math
import time
from typing import Final

import structlog
from pydantic import TypeAdapter
from redis import Redis
from rq import Queue

from preflight.redis import keys
from preflight.redis.lua import run_script
from preflight.redis.replies import as_date
from worker.admission.rate_limits import fill_rate_limit, rate_limits

SCHEDULE_INTERVAL: Final = 1.0
"""Seconds between two looks at the schedule; as RQ's."""
LOCK_SECONDS: Final = 10
"""Seconds after which another worker takes over from a scheduler that died; RQ's own locks last 61 s."""
LONGEST_LOCK_SECONDS: Final = 122
"""Longest lock that is respected, in seconds, twice RQ's: a longer one is no scheduler's."""
RATE_LIMIT_INTERVAL: Final = 30.0
"""Seconds between two looks at all rate limits: a job that was killed or cancelled frees its slot then."""
PAGE: Final = 1000
"""Jobs of a registry in one step; more follow at once."""

ANSWER = TypeAdapter(list[bytes | int])


class Scheduler:
    """Enqueues scheduled jobs while its worker holds RQ's lock; other workers, and RQ's schedulers, stand by."""

    def __init__(self, connection: Redis, queue: Queue, worker: str, *, enabled: bool = True) -> None:
        """Schedule the jobs of `queue` in the name of `worker`; never, unless `enabled`."""
        self._connection = connection
        self._queue = queue
        self._worker = worker
        self._holds_lock = False
        self._next_step = 0.0 if enabled else math.inf
        self._next_rate_limits = 0.0

    def due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() >= self._next_step

    def step(self) -> None:
        """Enqueue the jobs that are due; raises `redis.exceptions.RedisError`, and may be repeated."""
        queue = self._queue
        held, enqueued, *limits = run_script(
            self._connection, "scheduling/enqueue_due", ANSWER,
            keys=[
                keys.rq_scheduler_lock(queue.name), queue.key, queue.scheduled_job_registry.key,
                keys.rq_ready(queue.name),
            ],
            args=[
                self._worker, int(1000 * LOCK_SECONDS), int(1000 * LONGEST_LOCK_SECONDS), as_date(time.time()), PAGE,
            ],
        )  # fmt: skip
        if held and not self._holds_lock:
            structlog.get_logger("preflight").info(
                "scheduling", queue=queue.name, worker=self._worker, message="this worker enqueues scheduled jobs"
            )
        self._holds_lock = bool(held)
        for limit in dict.fromkeys(name for name in limits if isinstance(name, bytes)):
            fill_rate_limit(self._connection, limit)
        if held:
            self.fill_rate_limits()
        self._next_step = time.monotonic() + (0 if enqueued == PAGE else SCHEDULE_INTERVAL)

    def fill_rate_limits(self) -> None:
        """Fill all rate limits where that is due; raises `redis.exceptions.RedisError`, and may be repeated."""
        if time.monotonic() >= self._next_rate_limits:
            for limit in rate_limits(self._connection):
                fill_rate_limit(self._connection, limit)
            self._next_rate_limits = time.monotonic() + RATE_LIMIT_INTERVAL

    def stop(self) -> None:
        """Release the lock, so that another scheduler takes over at once; raises `redis.exceptions.RedisError`."""
        if self._holds_lock:
            run_script(
                self._connection, "maintenance/release", ANSWER, keys=[keys.rq_scheduler_lock(self._queue.name)],
                args=[self._worker],
            )  # fmt: skip
