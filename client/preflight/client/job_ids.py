"""Job ids: the job's own, and RQ's where that is another; RQ's in queue and registries, read in pages.

One leads to the other once a worker has taken the job.
"""

import time
import zlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final, TypeVar

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from rq import Queue
from rq.job import Job
from rq.serializers import Serializer

from preflight.errors import InvalidConfig
from preflight.queue.ids import resolve_job_id
from preflight.queue.payload import PoisonMessage, decode_payload
from preflight.redis import keys
from preflight.redis.replies import text
from preflight.redis.retry import is_wrong_type
from preflight.wire import MAX_JOB_BYTES, Status, is_job_id

MAX_SEARCHED: Final = 1000
"""Waiting jobs, the next to run, whose payloads are read to find one job."""
MAX_SEARCHED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of these payloads, as they are stored; and once they are unpacked."""
MAX_UNPACKED_BYTES: Final = 2 * MAX_JOB_BYTES
"""Most bytes of one unpacked payload."""

Source = Callable[[Pipeline, int, int], object]
"""Queues a read of entries in a pipeline: offset and count."""
T = TypeVar("T")


def find_job_ids(redis: Redis, rq_ids: Collection[str]) -> dict[str, str]:
    """Return RQ's id -> the job's: the same where RQ has the job under it, or no worker has taken the job yet.

    Raises:
        redis.exceptions.NoPermissionError: this user may not read jobs.
    """
    pipe = redis.pipeline(transaction=False)
    for rq_id in rq_ids:
        pipe.get(keys.alias(rq_id))
    return {rq_id: _job_id(rq_id, alias) for rq_id, alias in zip(rq_ids, _execute(pipe), strict=True)}


def resolve(redis: Redis, given_id: str) -> str:
    """Return the id of the job that has `given_id`, or that RQ has under it; the former goes first."""
    pipe = redis.pipeline(transaction=False)
    pipe.hmget(keys.state(given_id), "status")
    pipe.get(keys.alias(given_id))
    state, alias = _execute(pipe)
    has_state = isinstance(state, list) and state != [None]
    return given_id if has_state else _job_id(given_id, alias)


def find_waiting(redis: Redis, queue: Queue, job_id: str) -> str | None:
    """Return RQ's id of a job that waits, by the id in its payload; reads a bounded number of payloads."""
    reads = (
        partial(redis.lrange, queue.intermediate_queue_key), partial(redis.lrange, queue.key),
        partial(redis.zrange, queue.scheduled_job_registry.key), partial(redis.zrange, queue.deferred_job_registry.key),
    )  # fmt: skip
    waiting = [rq_id for read in reads for entry in _entries(read) if is_job_id(rq_id := text(entry))]
    claimed = read_arguments(redis, waiting, _claims).items()
    return next((rq_id for rq_id, claim in claimed if claim == job_id), None)


def read_arguments(redis: Redis, rq_ids: Sequence[str], reduce: Callable[[str, Sequence[object]], T]) -> dict[str, T]:
    """Return RQ's id -> result of `reduce` for the arguments of that job, where they can be read.

    Payloads are unpacked one after the other, up to a number of bytes: a kilobyte may unpack to a hundred, and JSON to
    twenty times as much once it is parsed.

    Raises:
        redis.exceptions.NoPermissionError: this user may not read jobs.
    """
    sizes = redis.pipeline(transaction=False)
    for rq_id in rq_ids:
        sizes.hstrlen(keys.rq_job(rq_id), "data")
    found = [size if isinstance(size, int) and size <= MAX_JOB_BYTES else 0 for size in _execute(sizes)]
    read = [
        rq_id for rq_id, size, total in zip(rq_ids, found, accumulate(found), strict=True)
        if size and total <= MAX_SEARCHED_BYTES
    ]  # fmt: skip
    payloads = redis.pipeline(transaction=False)
    for rq_id in read:
        payloads.hget(keys.rq_job(rq_id), "data")
    reduced: dict[str, T] = {}
    left = MAX_SEARCHED_BYTES
    for rq_id, data in zip(read, _execute(payloads), strict=True):
        if isinstance(data, bytes) and left > 0:
            unpacked = _unpacked(data)
            left -= len(unpacked)
            with suppress(PoisonMessage):
                reduced[rq_id] = reduce(rq_id, decode_payload(rq_id, unpacked, MAX_UNPACKED_BYTES)[1])
    return reduced


def _unpacked(data: bytes) -> bytes:
    """Return a payload without its compression, if it has one; not much more than is allowed."""
    try:
        return zlib.decompressobj().decompress(data, MAX_UNPACKED_BYTES + 1)
    except zlib.error:
        return data


def _job_id(rq_id: str, alias: object) -> str:
    """Return the id in an alias; RQ's where there is no valid one."""
    return text(alias) if isinstance(alias, bytes) and is_job_id(text(alias)) else rq_id


def _entries(read: Callable[[int, int], Sequence[object]]) -> Sequence[object]:
    """Return the first entries of a key; none where it has another type, or this user may not read it."""
    try:
        return read(0, MAX_SEARCHED - 1)
    except ResponseError as error:
        if not (is_wrong_type(error) or isinstance(error, NoPermissionError)):
            raise
        return []


def _claims(rq_id: str, arguments: Sequence[object]) -> str:
    """Return the id of the job with these arguments."""
    try:
        return resolve_job_id(arguments, rq_id)
    except InvalidConfig:
        return rq_id


def _execute(pipe: Pipeline) -> list[object]:
    """Return the replies; an error stands for a key of another type."""
    replies: list[object] = pipe.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, NoPermissionError):
            raise reply
    return replies


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

    Jobs that never expire are read separately, so that they do not crowd out the others.
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


class AnyIdJob(Job):
    """A job with an unchecked id; `preflight.wire.is_job_id` checks it."""

    def __init__(
        self,
        id: str | None = None,
        connection: Redis | None = None,
        serializer: Serializer | str | None = None,
    ) -> None:
        super().__init__(None, connection=connection, serializer=serializer)
        self._id = id

    @property
    def id(self) -> str:
        """The job's id."""
        return self._id or super().id

    @id.setter
    def id(self, value: str) -> None:
        self._id = value
