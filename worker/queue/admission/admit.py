"""Admission of a job: its function, its arguments, its signature, then this worker's limits."""

from typing import Final

from pydantic import JsonValue
from redis import Redis

from training.errors import InvalidConfig
from worker.config.settings import Settings
from worker.queue.admission.acceptance import accept_once
from worker.queue.admission.limits import require_within_limits
from worker.queue.admission.signing import MAX_NUMBER, Terms, verify
from worker.queue.payload import excerpt
from worker.queue.untrusted_job import UntrustedJob
from worker.wire import FUNCTION, TrainJob, parse_job

ALLOWED_FUNCTIONS: Final = frozenset({FUNCTION})
"""Nothing else may be named by a queue, and nothing is imported by a name from Redis."""
KEYWORDS: Final = frozenset({"signature", "signed_at", "retries"})


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
    admitted = parse_job(request)
    if signed is not None:
        accept_once(connection, job, admitted.job_id or job.id, signed, settings)
    require_within_limits(admitted, job.timeout, settings, repeats=job.options.repeats_left)
    return admitted


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


def checked_signature(job: UntrustedJob, request: dict[str, JsonValue], key: str) -> tuple[str, int]:
    """Return signature and `signed_at` of a job that is signed with `key`; raises `InvalidConfig` for any other."""
    signature = job.kwargs.get("signature")
    if not isinstance(signature, str):
        raise InvalidConfig(
            "the job has no signature, but this worker asks for one; enqueue it with the signing key", field="signature"
        )
    terms = Terms(
        signed_at=_number(job, "signed_at", "the seconds since the epoch when it was signed"), timeout=job.timeout,
        result_ttl=job.result_ttl, failure_ttl=job.failure_ttl, ttl=job.ttl,
        retries=_number(job, "retries", "RQ's retries_left as it was enqueued"),
    )  # fmt: skip
    if not verify(request, terms, signature, key):
        raise InvalidConfig(
            f"the signature is not that of this job with signed_at {terms.signed_at}, timeout {terms.timeout}, "
            f"result_ttl {_json(terms.result_ttl)}, failure_ttl {_json(terms.failure_ttl)}, ttl {_json(terms.ttl)} "
            f"and retries {terms.retries} under this worker's key; sign the job as it is sent, with the same key as "
            "the worker's",
            field="signature",
        )
    if job.options.retries_left > terms.retries:
        raise InvalidConfig(
            f"the job has {job.options.retries_left} retries left, but its signature allows {terms.retries}; sign "
            "retries as the job is enqueued",
            field="signature",
        )
    return signature, terms.signed_at


def _number(job: UntrustedJob, keyword: str, meaning: str) -> int:
    value = job.kwargs.get(keyword)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_NUMBER:
        raise InvalidConfig(
            f"the keyword {keyword} of the signed job is {ascii(value)[:60]}, but must be a whole number from 0 to "
            f"{MAX_NUMBER}; send {meaning}",
            field="signature",
        )
    return value


def _json(value: int | None) -> str:
    return "null" if value is None else str(value)
