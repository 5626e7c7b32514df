"""Admission of a job: its function, its arguments, its signature, then this worker's limits."""

from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue
from redis import Redis
from redis.exceptions import ResponseError

from preflight.errors import InvalidConfig
from preflight.queue.payload import excerpt
from preflight.queue.signing import checked_signature
from preflight.queue.untrusted_job import UntrustedJob
from preflight.redis import keys
from preflight.redis.retry import is_wrong_type
from preflight.wire import FUNCTION, TrainJob, parse_job
from worker.admission.acceptance import accept_once
from worker.admission.limits import require_within_limits
from worker.config.settings import Settings
from worker.state.paths import has_attempts

ALLOWED_FUNCTIONS: Final = frozenset({FUNCTION})
"""Functions that a queue may name; nothing is imported by a name from Redis."""
KEYWORDS: Final = frozenset({"signature", "signed_at", "retries"})


@dataclass(frozen=True, slots=True)
class AdmittedJob:
    """A job from the queue that may run."""

    rq_job: UntrustedJob
    request: TrainJob
    job_id: str


def admit(job: UntrustedJob, connection: Redis, settings: Settings) -> TrainJob:
    """Return the request that a job from the queue carries.

    Raises:
        InvalidConfig: it is refused; the message says what to change.
        redis.exceptions.RedisError: Redis did not answer; it may be called again.
    """
    if job.func_name not in ALLOWED_FUNCTIONS:
        raise InvalidConfig(
            f"function {excerpt(job.func_name)} is not allowed on this queue; enqueue {FUNCTION!r}", field="function"
        )
    request = _request(job)
    key = settings.signing_key
    signed = None if key is None else checked_signature(job, request, key.get_secret_value())
    admitted = parse_job(
        request, lambda asked: _has_begun(connection, settings, asked.job_id or job.id),
        settings.require_dataset,
    )  # fmt: skip
    if signed is not None:
        accept_once(connection, job, admitted.job_id or job.id, signed, settings)
    require_within_limits(admitted, job.timeout, settings, repeats=job.options.repeats_left)
    return admitted


def _has_begun(connection: Redis, settings: Settings, job_id: str) -> bool:
    """Whether Redis or this disk knows an attempt at the job; raises `redis.exceptions.RedisError`."""
    if has_attempts(settings, job_id):
        return True
    try:
        return bool(connection.hexists(keys.fence(job_id), "attempt"))
    except ResponseError as error:
        if is_wrong_type(error):
            return False
        raise


def _request(job: UntrustedJob) -> dict[str, JsonValue]:
    """Return the one argument of the call."""
    if len(job.args) != 1 or set(job.kwargs) - KEYWORDS:
        raise InvalidConfig(
            f"{FUNCTION} got {len(job.args)} positional and {len(job.kwargs)} keyword arguments, but takes one "
            "positional argument, and no keyword but signature, signed_at and retries; send the TrainJob object"
        )
    request: JsonValue = job.args[0]
    if not isinstance(request, dict):
        raise InvalidConfig(f"the job is a {type(request).__name__}, but must be an object; send a TrainJob")
    return request
