"""Dependents: jobs that wait for another one are enqueued when it ends, as RQ does.

Which jobs have ended is recorded with their end, in one step, so that a worker that is killed in between leaves their
dependents to another.
"""

import time
from collections.abc import Sequence
from typing import Final

import structlog
from pydantic import TypeAdapter
from redis import Redis
from rq import Queue

from preflight.queue.payload import excerpt
from preflight.redis import keys
from preflight.redis.lua import run_script
from preflight.redis.replies import as_date
from preflight.redis.untrusted.reads import read_fields, read_page
from worker.admission.rate_limits import fill_rate_limit
from worker.config.settings import Settings

RELEASE_INTERVAL: Final = 5.0
"""Seconds between two looks for dependents that a killed worker left."""
PAGE: Final = 50
"""Dependents in one step, which takes a few milliseconds."""

RELEASED = TypeAdapter(tuple[bytes, list[bytes], list[bytes]])
QUEUES = TypeAdapter(list[bytes])
PENDING: Final = 250
"""Jobs that have ended, looked at in one step."""
MAX_ID_BYTES: Final = 256
MAX_STATUS_BYTES: Final = 32


class Dependents:
    """Releases the dependents of the jobs of one queue."""

    def __init__(self, connection: Redis, queue: Queue, settings: Settings) -> None:
        """Release dependents on `queue` and on the queues that the settings name."""
        self._connection = connection
        self._ended = keys.ended(queue.name)
        self._queues = _own_queues(queue, settings)
        self._next_step = 0.0

    def due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() >= self._next_step

    def step(self) -> None:
        """Release dependents of jobs that have ended; raises `redis.exceptions.RedisError`, and may be repeated."""
        page = read_page(
            self._connection, self._ended, 0, PENDING, name_bytes=MAX_ID_BYTES, value_bytes=MAX_STATUS_BYTES
        )
        for rq_id in page.names[:PENDING]:
            self.release(rq_id)
        self._next_step = time.monotonic() + RELEASE_INTERVAL

    def release(self, rq_id: bytes | str) -> None:
        """Release the dependents of a job, if it has ended and that has not been done.

        Raises:
            redis.exceptions.RedisError: Redis did not answer; it may be repeated.
        """
        raw = rq_id if isinstance(rq_id, bytes) else rq_id.encode()
        (status,) = read_fields(self._connection, self._ended, [raw], MAX_STATUS_BYTES)
        if status is None:
            return
        limits, refused = self._release_pages(raw, status)
        for limit in dict.fromkeys(limits):
            fill_rate_limit(self._connection, limit)
        self._connection.hdel(self._ended, raw)
        if refused:
            structlog.get_logger("preflight").warning(
                "dependents_not_enqueued", rq_id=excerpt(raw), message=explain_foreign_queues(refused)
            )

    def _release_pages(self, raw_id: bytes, status: bytes) -> tuple[list[bytes], list[bytes]]:
        """Return the rate limits to fill, and the queues whose dependents were left alone."""
        cursor, limits, refused = b"0", [], dict[bytes, None]()
        while True:
            cursor, page_limits, page_refused = run_script(
                self._connection, "scheduling/release_dependents", RELEASED, keys=[_dependents_key(raw_id)],
                args=[raw_id, status, cursor, PAGE, as_date(time.time()), *self._queues],
            )  # fmt: skip
            limits += page_limits
            refused |= dict.fromkeys(page_refused)
            if cursor == b"0":
                return limits, [*refused]


def foreign_queues(connection: Redis, queue: Queue, rq_id: str, settings: Settings) -> list[bytes]:
    """Return the queues of a job's dependents that get no jobs from this worker; raises `RedisError`."""
    found = run_script(connection, "scheduling/dependent_queues", QUEUES, keys=[keys.rq_dependents(rq_id)], args=[PAGE])
    own = _own_queues(queue, settings)
    return [name for name in found if name.decode(errors="replace") not in own]


def explain_foreign_queues(queues: Sequence[bytes]) -> str:
    """Return the sentence on dependents that are not enqueued."""
    names = ", ".join(excerpt(name.decode(errors="replace")) for name in queues[:5])
    return (
        f"jobs that depend on this one wait on queues that this worker does not enqueue to ({names}); "
        "name them in PREFLIGHT_DEPENDENT_QUEUES"
    )


def _own_queues(queue: Queue, settings: Settings) -> tuple[str, ...]:
    return (queue.name, *filter(None, settings.dependent_queues.split(",")))


def _dependents_key(raw_id: bytes) -> bytes:
    return keys.rq_dependents(raw_id.decode(errors="surrogateescape")).encode(errors="surrogateescape")
