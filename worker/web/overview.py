"""What the whole service is doing: its queue and its workers, as Redis has them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict
from redis.exceptions import RedisError

from worker.broker.replies import text
from worker.broker.retry import spoiled
from worker.wire import Count, Label, Seconds

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline

MOST_WORKERS: Final = 1000
"""Workers looked at; what registers more of them is no worker."""
LONGEST_SILENCE: Final = 1e10
"""Seconds; a time stamp of the year 1 is no more than that ago."""
FIELDS: Final = ("state", "current_job", "last_heartbeat", "birth", "hostname", "version")


class Shown(BaseModel):
    """Base of what the page is shown."""

    model_config = ConfigDict(frozen=True)


class WorkerSeen(Shown):
    """A worker that has given a sign of life of late."""

    name: Label
    state: Label
    """RQ's word: `idle`, `busy`, `started`, `suspended`."""
    job_id: Label | None = None
    """What it runs."""
    hostname: Label | None = None
    silent_s: Seconds | None = None
    """Seconds since its last sign of life."""


class Overview(Shown):
    """The queue and its workers."""

    queue: Label
    depth: Count
    """Jobs that wait."""
    running: Count
    workers: tuple[WorkerSeen, ...]


def overview(redis: Redis, queue: str) -> Overview:
    """Return what waits, what runs, and who works; raises `redis.exceptions.RedisError`."""
    pipe = redis.pipeline(transaction=False)
    pipe.llen(f"rq:queue:{queue}")
    pipe.zcard(f"rq:wip:{queue}")
    pipe.smembers(f"rq:workers:{queue}")
    depth, running, names = _answers(pipe)
    members = sorted(text(name) for name in names if isinstance(name, bytes)) if isinstance(names, set | list) else []
    pipe = redis.pipeline(transaction=False)
    for name in members[:MOST_WORKERS]:
        pipe.hmget(name, FIELDS)
    found = zip(members, _answers(pipe), strict=False)
    # A worker that was killed stays in the set; its hash is gone soon.
    seen = tuple(
        _worker(name, dict(zip(FIELDS, values, strict=True)))
        for name, values in found
        if isinstance(values, list) and any(values)
    )
    return Overview(queue=queue, depth=_count(depth), running=_count(running), workers=seen)


def _answers(pipe: Pipeline) -> list[object]:
    """Return what each command of a pipeline answered, None for keys of a wrong type; raises `RedisError`."""
    answers: list[object] = pipe.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, RedisError) and not spoiled(answer):
            raise answer
    return [None if isinstance(answer, RedisError) else answer for answer in answers]


def _count(answer: object) -> int:
    return answer if isinstance(answer, int) else 0


def _worker(key: str, fields: dict[str, bytes | None]) -> WorkerSeen:
    return WorkerSeen(
        name=key.removeprefix("rq:worker:")[:256],
        state=text(fields["state"] or b"?")[:256],
        job_id=text(fields["current_job"])[:256] if fields["current_job"] else None,
        hostname=text(fields["hostname"])[:256] if fields["hostname"] else None,
        silent_s=_silent(text(fields["last_heartbeat"] or b"")),
    )


def _silent(stamp: str) -> float | None:
    """Return the seconds since RQ's time stamp, e.g. 2026-01-31T12:00:00.000000Z; None for what is none."""
    from datetime import datetime

    try:
        return min(max(0.0, time.time() - datetime.fromisoformat(stamp).timestamp()), LONGEST_SILENCE)
    except (ValueError, OverflowError):
        return None
