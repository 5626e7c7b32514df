"""Counters of events since Redis was set up; each event counts once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from preflight.redis import keys
from preflight.redis.replies import text
from preflight.wire import (
    STATUS_BY_EVENT,
    AnyEvent,
    CalibrationWinner,
    GroupChanged,
    GroupFormed,
    GroupMeasured,
    GroupShort,
    JobCancelled,
    JobFailed,
    JobInterrupted,
    JobResumed,
    JobStarted,
    MemoryRanOut,
    TrainingDone,
)

if TYPE_CHECKING:
    from redis import Redis

DURATIONS: Final = (1, 5, 15, 60, 300, 900, 3600, 14_400)
"""Upper bounds of the buckets of job durations, seconds; the last bucket has none."""

ATTEMPTS: Final = "attempts"
RESUMES: Final = "resumes"
INTERRUPTIONS: Final = "interruptions"
MEMORY_KILLS: Final = "memory_kills"
GROUPS: Final = "groups"
GROUPS_LET_GO: Final = "groups_let_go"
GROUPS_SHORT: Final = "groups_short"
MEMBERS_LEFT: Final = "members_left"
CALIBRATIONS: Final = "calibrations"
CALIBRATION_SECONDS: Final = "calibration_seconds"
SECONDS: Final = "job_seconds"
ENDED: Final = "ended:"
"""Prefix of outcome and reason."""
FINISHED: Final = f"{ENDED}finished:"
"""Jobs that ended with a model."""
MAX_TOTALS: Final = 10_000
"""Most counters of a hash that is read; a service has some dozens."""
BUCKET: Final = "job_seconds:"
"""Prefix of a bucket's upper bound; each job is in one bucket."""


def counter_increments(event: AnyEvent, began: float | None) -> Mapping[str, float]:
    """Return counter -> increment by an event of an attempt that began at `began`, where that is known."""
    match event:
        case JobStarted():
            return {ATTEMPTS: 1}
        case JobResumed():
            return {RESUMES: 1}
        case JobInterrupted():
            return {INTERRUPTIONS: 1}
        case MemoryRanOut():
            return {MEMORY_KILLS: 1}
        case GroupFormed():
            return {GROUPS: 1}
        case GroupMeasured(kept=False):
            return {GROUPS_LET_GO: 1}
        case GroupShort():
            return {GROUPS_SHORT: 1}
        case GroupChanged() if event.left:
            return {MEMBERS_LEFT: len(event.left)}
        case CalibrationWinner(source="measured"):
            return {CALIBRATIONS: 1, CALIBRATION_SECONDS: event.calibration_s}
        case TrainingDone() | JobCancelled() | JobFailed():
            reason = event.reason if isinstance(event, JobFailed) else ""
            out_of_memory = {MEMORY_KILLS: 1.0} if reason == "out_of_memory" else {}
            return {f"{ENDED}{STATUS_BY_EVENT[event.type]}:{reason}": 1, **out_of_memory, **_duration(event, began)}
    return {}


def read_totals(redis: Redis) -> Mapping[str, float]:
    """Return all counters, ignoring values that are not numbers; raises `redis.exceptions.RedisError`."""
    from redis.exceptions import ResponseError

    from preflight.redis.retry import is_wrong_type

    found: dict[str, float] = {}
    try:
        if redis.hlen(keys.TOTALS) > MAX_TOTALS:
            return found
        answer = redis.hgetall(keys.TOTALS)
    except ResponseError as error:
        if is_wrong_type(error):
            return found
        raise
    for name, value in answer.items():
        with suppress(ValueError):
            found[text(name)] = float(value)
    return found


def _duration(event: AnyEvent, began: float | None) -> dict[str, float]:
    if began is None:
        return {}
    seconds = max(0.0, event.ts - began)
    bound = next((str(bound) for bound in DURATIONS if seconds <= bound), "+Inf")
    return {SECONDS: seconds, f"{BUCKET}{bound}": 1}
