"""Repeats: a job of RQ's `Repeat` that has finished runs again, as a separate job with its own id."""

import hashlib
import json
import re
import time
from collections.abc import Mapping
from typing import Final

from redis import Redis
from rq import Queue

from preflight.queue.untrusted_job import UntrustedJob
from preflight.redis import keys
from preflight.redis.lua import TEXT, run_script
from preflight.redis.replies import as_date
from preflight.wire import JobState
from worker.broker.fencing import Fence, Superseded

MAX_ID_LENGTH: Final = 64
NOT_REPEATED: Final = ("enqueued_at", "meta")
"""Fields of a run that the next one does not get as they are."""


def enqueue_repeat(connection: Redis, queue: Queue, job: UntrustedJob, fence: Fence) -> None:
    """Enqueue or schedule the next run of a finished job, once; `fence` may be unclaimed.

    Raises:
        Superseded: a newer attempt has taken over.
        redis.exceptions.RedisError: Redis did not answer; it may be repeated.
    """
    following, pause = next_id(job.id), job.options.repeat_pause
    fields = next_run(job, following, "scheduled" if pause else "queued", as_date(time.time()))
    owner = fence.owner if fence.attempt else ""
    answer = run_script(
        connection, "scheduling/repeat", TEXT,
        keys=[keys.fence(fence.job_id), keys.rq_job(following), queue.key, queue.scheduled_job_registry.key],
        args=[owner, fence.attempt, following, pause or "", *(part for pair in fields.items() for part in pair)],
    )  # fmt: skip
    if answer == "superseded":
        raise Superseded


def next_run(job: UntrustedJob, rq_id: str, status: str, date: str) -> Mapping[str, bytes | str | int]:
    """Return the fields of the next run's hash: its id is that of the job, one repeat fewer is left."""
    intervals = job.options.repeat_intervals
    call = [job.func_name, None, [_named(argument, rq_id) for argument in job.args], dict(job.kwargs)]
    own = {name: value for name, value in job.meta.items() if name not in JobState.model_fields}
    return {
        **{name: value for name, value in job.fields.items() if name not in NOT_REPEATED},
        "data": json.dumps(call),
        "status": status,
        "created_at": date,
        **({"enqueued_at": date} if status == "queued" else {}),
        "repeats_left": job.options.repeats_left - 1,
        "repeat_intervals": json.dumps(intervals[1:] if len(intervals) > 1 else intervals),
        **({"meta": json.dumps(own)} if own else {}),
    }


def next_id(rq_id: str) -> str:
    """Return the id of the next run, such as `nightly-repeat-2` after `nightly`."""
    match = re.fullmatch(r"(.+)-repeat-([1-9][0-9]{0,9})", rq_id)
    first, number = (match[1], int(match[2])) if match else (rq_id, 1)
    suffix = f"-repeat-{number + 1}"
    if len(first) + len(suffix) > MAX_ID_LENGTH:
        digest = hashlib.sha256(first.encode()).hexdigest()[:16]
        first = f"{first[: MAX_ID_LENGTH - len(suffix) - 17]}-{digest}"
    return first + suffix


def _named(argument: object, rq_id: str) -> object:
    """Return the request under the next id, if it names one."""
    return {**argument, "job_id": rq_id} if isinstance(argument, dict) and "job_id" in argument else argument
