"""Where RQ keeps the ids of jobs, read in pages: a list of 100 takes as long with 100,000 jobs as with 1,000."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from worker.broker.replies import text
from worker.wire import Status, is_job_id

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline
    from rq import Queue

LIMIT: Final = 100
"""Jobs in a list that asks for no other number."""
SMALLEST_PAGE: Final = 50
"""Ids read of a source at once, at least: a short list need not go back for each job that it passes over."""
MOST_PAGES: Final = 5
"""Pages of a source that one list reads."""

Source = Callable[["Pipeline", int, int], object]
"""Asks through a pipeline for a page of entries, given by the number of the first and how many."""


def sources(queue: Queue, statuses: Collection[Status] = ()) -> list[Source]:
    """Return where the jobs of these statuses stand, of all where none is given, the newest first in each.

    They come in the order in which a job passes through them, so that none is missed on its way. Any of them may have
    ended or begun a moment ago and still be among those that run.
    """

    def asks(status: Status) -> bool:
        return not statuses or status in statuses

    found = [*_list_ends(queue.key), _tail(queue.intermediate_queue_key)] if asks("queued") else []
    found.append(_scored(queue.started_job_registry.key, "+inf", "-inf"))
    if asks("finished"):
        found += _by_expiry(queue.finished_job_registry.key)
    if asks("failed"):
        found += _by_expiry(queue.failed_job_registry.key)
    if asks("cancelled"):
        found.append(_scored(queue.canceled_job_registry.key, "+inf", "-inf"))
    return found


def _list_ends(key: str) -> list[Source]:
    """Return both ends of the queue: the newest jobs are at its tail, those that were put back at its head."""
    return [_tail(key), lambda pipe, first, count: pipe.lrange(key, first, first + count - 1)]


def _tail(key: str) -> Source:
    return lambda pipe, first, count: pipe.lrange(key, -first - count, -first - 1)


def _by_expiry(key: str) -> list[Source]:
    """Return the parts of a registry that is scored by when its jobs expire: what has not, and what never will.

    RQ gives the latter +inf or -1. It is asked for apart, so that it does not crowd out the others.
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
    """How many it has, whatever they are; with fewer than were asked for, the source is exhausted."""
    ids: Sequence[str]
    """Those among them that can be a job's."""


def pages(redis: Redis, asked: Sequence[Source], number: int, size: int) -> list[Page]:
    """Return the page of this number of each source, in one round trip."""
    pipe = redis.pipeline(transaction=False)
    for source in asked:
        source(pipe, number * size, size)
    return [_page(answer) for answer in pipe.execute(raise_on_error=False)]


def _page(answer: object) -> Page:
    from redis.exceptions import RedisError

    from worker.broker.retry import spoiled

    if isinstance(answer, RedisError) and not spoiled(answer):
        raise answer
    entries = answer if isinstance(answer, list) else []  # a key of another type is somebody else's
    names = dict.fromkeys(text(entry).partition(":")[0] for entry in entries)  # of those that run, `id:execution`
    return Page(len(entries), [name for name in names if is_job_id(name)])
