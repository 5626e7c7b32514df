"""What has happened since Redis was set up, counted where events are taken: each once, whatever is restarted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from worker.broker import keys
from worker.broker.replies import text
from worker.wire import (
    AnyEvent,
    CalibrationWinner,
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
CALIBRATIONS: Final = "calibrations"
CALIBRATION_SECONDS: Final = "calibration_seconds"
SECONDS: Final = "job_seconds"
ENDED: Final = "ended:"
"""Before the outcome, and the reason of a failure."""
BUCKET: Final = "job_seconds:"
"""Before the upper bound of a bucket of durations, each job being in one."""


def counted(event: AnyEvent, began: float | None) -> Mapping[str, float]:
    """Return what an event adds to which totals.

    Args:
        event: what happened.
        began: when its attempt did, seconds since the epoch; None where that is not known.
    """
    match event:
        case JobStarted():
            return {ATTEMPTS: 1}
        case JobResumed():
            return {RESUMES: 1}
        case JobInterrupted():
            return {INTERRUPTIONS: 1}
        case MemoryRanOut():
            return {MEMORY_KILLS: 1}
        case CalibrationWinner(source="measured"):
            return {CALIBRATIONS: 1, CALIBRATION_SECONDS: event.calibration_seconds}
        case TrainingDone():
            return {f"{ENDED}finished:": 1, **_lasted(event, began)}
        case JobCancelled():
            return {f"{ENDED}cancelled:": 1, **_lasted(event, began)}
        case JobFailed():
            out_of_memory = {MEMORY_KILLS: 1.0} if event.reason == "out_of_memory" else {}
            return {f"{ENDED}failed:{event.reason}": 1, **out_of_memory, **_lasted(event, began)}
    return {}


def read_totals(redis: Redis) -> Mapping[str, float]:
    """Return all totals; what is no number, or no hash, is passed over. Raises `redis.exceptions.RedisError`."""
    from redis.exceptions import ResponseError

    from worker.broker.retry import spoiled

    found: dict[str, float] = {}
    try:
        answer = redis.hgetall(keys.TOTALS)
    except ResponseError as error:
        if spoiled(error):
            return found
        raise
    for name, value in answer.items():
        with suppress(ValueError):
            found[text(name)] = float(value)
    return found


def _lasted(event: AnyEvent, began: float | None) -> dict[str, float]:
    if began is None:
        return {}
    seconds = max(0.0, event.ts - began)
    bound = next((str(bound) for bound in DURATIONS if seconds <= bound), "+Inf")
    return {SECONDS: seconds, f"{BUCKET}{bound}": 1}
