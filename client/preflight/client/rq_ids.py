"""RQ's job ids: the queue and the registries, read in pages."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import RedisError
from rq import Queue

from preflight.redis.replies import text
from preflight.redis.retry import is_wrong_type
from preflight.wire import Status, is_job_id

Source = Callable[[Pipeline, int, int], object]
"""Queues a read of entries in a pipeline: offset and count."""


def sources_of(queue: Queue, statuses: Collection[Status] = ()) -> list[Source]:
    """Return the lists and registries with jobs of these statuses, all where none is given; each newest first.

    The order is that of a job's way through them, so that a moving job is not missed. The started registry is always
    read, as a job of another status may not have left it yet.
    """

    def includes(status: Status) -> bool:
        return not statuses or status in statuses

    found: list[Source] = []
    if includes("queued"):
        registries = (queue.scheduled_job_registry, queue.deferred_job_registry)
        found += [_scored(registry.key, "+inf", "-inf") for registry in registries]
        found += [*_list_ends(queue.key), _tail(queue.intermediate_queue_key)]
    found.append(_scored(queue.started_job_registry.key, "+inf", "-inf"))
    if includes("finished"):
        found += _by_expiry(queue.finished_job_registry.key)
    if includes("failed") or includes("cancelled"):  # RQ lists a stopped job with the failed ones
        found += _by_expiry(queue.failed_job_registry.key)
    if includes("cancelled"):
        found.append(_scored(queue.canceled_job_registry.key, "+inf", "-inf"))
    return found


def _list_ends(key: str) -> list[Source]:
    """Return both ends of the queue: new jobs are at its tail, requeued ones at its head."""
    return [_tail(key), lambda pipe, first, count: pipe.lrange(key, first, first + count - 1)]


def _tail(key: str) -> Source:
    return lambda pipe, first, count: pipe.lrange(key, -first - count, -first - 1)


def _by_expiry(key: str) -> list[Source]:
    """Return the parts of a registry scored by expiry: later than now, and never, which RQ scores as +inf or -1.

    Jobs that never expire are read apart, so that they do not crowd out the others.
    """
    return [_scored(key, "(+inf", f"({time.time():.0f}"), _scored(key, "+inf", "+inf"), _scored(key, "(0", "-inf")]


def _scored(key: str, highest: str, lowest: str) -> Source:
    return lambda pipe, first, count: pipe.zrange(
        key, highest, lowest, desc=True, byscore=True, offset=first, num=count
    )


@dataclass(frozen=True, slots=True)
class Page:
    """A page of one source."""

    entries: int
    """Number of entries, valid or not; fewer than requested: the source is exhausted."""
    ids: Sequence[str]
    """The entries that are job ids."""


def read_pages(redis: Redis, sources: Sequence[Source], number: int, size: int) -> list[Page]:
    """Return page `number` of each source, in one round trip."""
    pipe = redis.pipeline(transaction=False)
    for source in sources:
        source(pipe, number * size, size)
    return [_page(reply) for reply in pipe.execute(raise_on_error=False)]


def _page(reply: object) -> Page:
    if isinstance(reply, RedisError) and not is_wrong_type(reply):
        raise reply
    entries = reply if isinstance(reply, list) else []  # a key of another type has no jobs
    names = dict.fromkeys(text(entry).partition(":")[0] for entry in entries)  # running jobs are `id:execution`
    return Page(len(entries), [name for name in names if is_job_id(name)])
