"""Overview: the queue and its workers, from RQ's keys."""

from __future__ import annotations

import time
from collections import deque
from datetime import datetime
from typing import Final

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import RedisError

from preflight.client.job_ids import find_job_ids
from preflight.redis import keys
from preflight.redis.replies import text
from preflight.redis.retry import is_wrong_type
from preflight.wire import Count, Label, Seconds
from preflight.wire.base import Rate
from worker.web.models import ApiModel

MAX_WORKERS: Final = 1000
MAX_MEMBERS: Final = 100_000
"""Most members of RQ's set of workers, which keeps those that were killed."""
MAX_KEY_LENGTH: Final = 512
WORKER_KEY: Final = keys.rq_worker("")
MAX_SILENCE_SECONDS: Final = 1e10
"""Longest silence that is reported: a time stamp of the year 1 would give more."""
FIELDS: Final = ("state", "current_job", "last_heartbeat", "birth", "hostname", "version", keys.GROUP)
SPAN_SECONDS: Final = 3600.0
LEAST_SECONDS: Final = 60.0
"""Shortest span of a rate: over a shorter one a single job would count as dozens an hour."""
SAMPLE_SECONDS: Final = 30.0
"""Least seconds between two readings that are kept."""


class JobPace:
    """The readings of the last hour."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, float]] = deque()
        """Monotonic time, and the jobs that had finished by then."""

    def observe(self, finished: float) -> float | None:
        """Take a reading of the counter; return the jobs an hour since the first one, None for the first minute."""
        now = time.monotonic()
        if self._readings and finished < self._readings[-1][1]:
            self._readings.clear()  # Redis lost its data
        if not self._readings or now - self._readings[-1][0] >= SAMPLE_SECONDS:
            self._readings.append((now, finished))
        while now - self._readings[0][0] > SPAN_SECONDS:
            self._readings.popleft()
        since, before = self._readings[0]
        return (finished - before) * 3600 / (now - since) if now - since >= LEAST_SECONDS else None


class WorkerInfo(ApiModel):
    """A worker whose heartbeat has not expired."""

    name: Label
    state: Label
    """RQ's state: `idle`, `busy`, `started`, `suspended`."""
    job_id: Label | None = None
    """The job that it runs."""
    member_of: Label | None = None
    """The job in whose group it has a seat."""
    hostname: Label | None = None
    silent_s: Seconds | None = None
    """Seconds since its last heartbeat."""


class Overview(ApiModel):
    """The queue and its workers."""

    queue: Label
    depth: Count
    """Jobs in the queue."""
    running: Count
    suspended: bool = False
    """Whether `rq suspend` keeps workers from taking jobs."""
    read_only: bool = False
    """Whether this service refuses to start, retry or cancel jobs (`PREFLIGHT_WEB_READONLY`)."""
    workers: tuple[WorkerInfo, ...]
    notice: str | None = None
    """Why no job is taken, with the command that ends it in backquotes; null: there are workers that take them."""
    jobs_per_hour: Rate | None = None
    """Jobs an hour that finish, over the last hour or since this service looks at it; null for the first minute."""


def read_overview(redis: Redis, queue: str, *, read_only: bool = False) -> Overview:
    """Return the queue and its workers; raises `redis.exceptions.RedisError`."""
    pipe = redis.pipeline(transaction=False)
    pipe.llen(f"rq:queue:{queue}")
    pipe.zcard(f"rq:wip:{queue}")
    pipe.scard(keys.rq_workers(queue))
    pipe.exists(keys.RQ_SUSPENDED)
    depth, running, size, suspended = _execute(pipe)
    members = _worker_keys(redis, keys.rq_workers(queue)) if 0 < _count(size) <= MAX_MEMBERS else []
    pipe = redis.pipeline(transaction=False)
    for name in members[:MAX_WORKERS]:
        pipe.hmget(name, FIELDS)
    found = zip(members, _execute(pipe), strict=False)
    # A killed worker stays in the set; its hash expires.
    seen = [
        _worker(name, dict(zip(FIELDS, values, strict=True)))
        for name, values in found
        if isinstance(values, list) and any(values)
    ]
    job_ids = find_job_ids(redis, [worker.job_id for worker in seen if worker.job_id is not None])
    workers = tuple(worker.model_copy(update={"job_id": job_ids.get(worker.job_id or "")}) for worker in seen)
    return Overview(
        queue=queue, depth=_count(depth), running=_count(running), suspended=suspended == 1, read_only=read_only,
        workers=workers, notice=_notice(queue, suspended=suspended == 1, is_alone=not workers),
    )  # fmt: skip


def _notice(queue: str, *, suspended: bool, is_alone: bool) -> str | None:
    if suspended:
        return "Workers are suspended and take no job; `rq resume` ends it."
    return f"No worker listens to the queue {queue}; `preflight worker` starts one." if is_alone else None


def read_workers_field(redis: Redis, queue: str, field: str) -> list[bytes]:
    """Return a field of RQ's hash of each worker that has it; raises `redis.exceptions.RedisError`."""
    pipe = redis.pipeline(transaction=False)
    pipe.scard(keys.rq_workers(queue))
    (size,) = _execute(pipe)
    pipe = redis.pipeline(transaction=False)
    for name in _worker_keys(redis, keys.rq_workers(queue))[:MAX_WORKERS] if 0 < _count(size) <= MAX_MEMBERS else []:
        pipe.hget(name, field)
    return [value for value in _execute(pipe) if isinstance(value, bytes)]


def _worker_keys(redis: Redis, key: str) -> list[str]:
    """Return the keys of workers in RQ's set of them."""
    pipe = redis.pipeline(transaction=False)
    pipe.smembers(key)
    (found,) = _execute(pipe)
    members = [text(name) for name in found] if isinstance(found, set | list) else []
    return sorted(name for name in members if name.startswith(WORKER_KEY) and len(name) <= MAX_KEY_LENGTH)


def _execute(pipe: Pipeline) -> list[object]:
    """Return the reply to each command, None for a key of a wrong type; raises `RedisError`."""
    replies: list[object] = pipe.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, RedisError) and not is_wrong_type(reply):
            raise reply
    return [None if isinstance(reply, RedisError) else reply for reply in replies]


def _count(reply: object) -> int:
    return reply if isinstance(reply, int) else 0


def _worker(key: str, fields: dict[str, bytes | None]) -> WorkerInfo:
    return WorkerInfo(
        name=key.removeprefix(WORKER_KEY)[:256],
        state=text(fields["state"] or b"?")[:256],
        job_id=text(fields["current_job"])[:256] if fields["current_job"] else None,
        member_of=_idle_text(fields, keys.GROUP),
        hostname=text(fields["hostname"])[:256] if fields["hostname"] else None,
        silent_s=_seconds_since(text(fields["last_heartbeat"] or b"")),
    )


def _idle_text(fields: dict[str, bytes | None], name: str) -> str | None:
    """Return a field that counts for an idle worker only: a busy one may not have removed it yet."""
    value = fields[name]
    return None if fields["current_job"] or not value else text(value)[:256]


def _seconds_since(stamp: str) -> float | None:
    """Return the age of RQ's time stamp, e.g. 2026-01-31T12:00:00.000000Z; None for an invalid one."""
    try:
        return min(max(0.0, time.time() - datetime.fromisoformat(stamp).timestamp()), MAX_SILENCE_SECONDS)
    except (ValueError, OverflowError):
        return None
