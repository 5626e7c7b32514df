"""A snapshot of RQ's registries: all read in one transaction, so that no job is between two of them."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue

from preflight.redis.replies import text
from preflight.redis.retry import is_wrong_type
from preflight.wire import STATE_TTL, is_job_id
from worker.web.listing.table import Entry

MAX_JOBS: Final = 100_000
"""Most jobs of each registry that are indexed: the newest, and of the queue the next to run."""
PAGE: Final = 10_000
"""Entries in one read of a whole registry."""


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry of jobs that have ended, between two scores."""

    name: str
    key: str
    low: str
    high: str
    expired_below: float = 0.0
    """Score below which entries have expired; 0: none expires, and new entries are found by their number only."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Jobs by registry at one moment."""

    active: Mapping[str, Sequence[str]]
    """`scheduled`, `deferred`, `queue` in its order, `taken` and `running` -> RQ's ids."""
    new: Mapping[str, Sequence[Entry]]
    """Name of a registry of ended jobs -> entries since the last snapshot."""
    counts: Mapping[str, int]
    """Name of a registry of ended jobs -> its entries."""


def ended_registries(queue: Queue) -> list[Registry]:
    """Return the registries of ended jobs. RQ scores by expiry, and what never expires by +inf or -1."""
    now = time.time()
    found = [
        registry
        for name, key in (("finished", queue.finished_job_registry.key), ("failed", queue.failed_job_registry.key))
        for registry in (
            Registry(name, key, f"{now:.0f}", "(+inf", now),
            Registry(f"{name}, +inf", key, "+inf", "+inf"), Registry(f"{name}, -1", key, "-inf", "(0"),
        )
    ]  # fmt: skip
    oldest = now - STATE_TTL
    return [*found, Registry("canceled", queue.canceled_job_registry.key, f"{oldest:.0f}", "+inf", oldest)]


def read_snapshot(queue: Queue, registries: Sequence[Registry], since: Mapping[str, float | None]) -> Snapshot:
    """Return a snapshot; of a registry of ended jobs the entries from the score `since` on.

    Raises:
        redis.exceptions.RedisError: Redis did not answer.
    """
    pipe = queue.connection.pipeline(transaction=True)
    for registry in registries:
        pipe.zcount(registry.key, registry.low, registry.high)
    for registry in registries:
        from_score = since[registry.name]
        pipe.zrange(
            registry.key, registry.high, registry.low if from_score is None else f"{from_score:.17g}", desc=True,
            byscore=True, offset=0, num=PAGE if registry.expired_below else 0, withscores=True,
        )  # fmt: skip
    last = MAX_JOBS - 1
    pipe.zrange(queue.scheduled_job_registry.key, 0, last)
    pipe.zrange(queue.deferred_job_registry.key, 0, last)
    pipe.lrange(queue.key, 0, last)
    pipe.lrange(queue.intermediate_queue_key, 0, last)
    pipe.zrange(queue.started_job_registry.key, 0, last)
    replies = [_checked(reply) for reply in pipe.execute(raise_on_error=False)]
    size = len(registries)
    names = [registry.name for registry in registries]
    active = ("scheduled", "deferred", "queue", "taken", "running")
    return Snapshot(
        counts=dict(zip(names, (reply if isinstance(reply, int) else 0 for reply in replies[:size]), strict=True)),
        new=dict(zip(names, map(_entries, replies[size : 2 * size]), strict=True)),
        active=dict(zip(active, map(_ids, replies[2 * size :]), strict=True)),
    )


def read_whole(redis: Redis, registry: Registry) -> list[Entry]:
    """Return the newest entries of a registry, at most `MAX_JOBS`; raises `redis.exceptions.RedisError`."""
    found: dict[str, float] = {}
    for first in range(0, MAX_JOBS, PAGE):
        reply = redis.zrange(
            registry.key, registry.high, registry.low, desc=True, byscore=True, offset=first, num=PAGE, withscores=True
        )  # fmt: skip
        found |= _entries(reply)
        if len(reply) < PAGE:
            break
    return [*found.items()]


def _checked(reply: object) -> object:
    """Return a reply, None for a key of another type; raises any other error."""
    if isinstance(reply, RedisError):
        if not is_wrong_type(reply):
            raise reply
        return None
    return reply


def _entries(reply: object) -> list[Entry]:
    return [(_name(text(rq_id)), float(score)) for rq_id, score in reply] if isinstance(reply, list) else []


def _ids(reply: object) -> list[str]:
    """Return the ids of entries; running jobs are `id:execution`."""
    entries = reply if isinstance(reply, list) else []
    return [*dict.fromkeys(_name(text(entry).partition(":")[0]) for entry in entries)]


def _name(entry: str) -> str:
    """Return the id of a job; for an invalid one, which may be long, a short name."""
    if is_job_id(entry):
        return entry
    return f"({hashlib.blake2b(entry.encode(errors='replace'), digest_size=16).hexdigest()})"
