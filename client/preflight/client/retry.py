"""Retry a job that has failed or was cancelled: it is enqueued again under its id and resumes from its checkpoint."""

import json
import time
from typing import Final

from pydantic import JsonValue
from redis import Redis
from redis.exceptions import ResponseError
from rq import Queue
from rq.exceptions import NoSuchJobError

from preflight.client.enqueue import RETRIES
from preflight.client.job_state import STATUS_BY_RQ_STATUS, JobRecord
from preflight.errors import InvalidConfig
from preflight.queue.payload import PoisonMessage
from preflight.queue.signing import MAX_NUMBER, Terms, checked_signature, signed_keywords
from preflight.queue.untrusted_job import UntrustedJob, fetch_job
from preflight.redis import keys
from preflight.redis.lua import TEXT, run_script
from preflight.redis.replies import as_date
from preflight.redis.retry import is_wrong_type
from preflight.redis.untrusted.values import Refused, as_whole
from preflight.wire import FUNCTION

RETRIED: Final = ("failed", "cancelled")
NEWEST_ENDED: Final = "newest_ended"
"""Field of the acceptance record: when the newest message was signed whose job has ended."""
MAX_DIGITS: Final = 19


class CannotRetry(InvalidConfig):
    """The job cannot be enqueued again under its id."""


def retry_job(queue: Queue, record: JobRecord, *, signing_key: str | None) -> None:
    """Put a job back into its queue, signed again where there is a key.

    Raises:
        CannotRetry: it has not failed and was not cancelled, RQ's record of it has expired, or is not the one that was
            signed and accepted.
        redis.exceptions.RedisError: Redis did not answer.
    """
    if record.status not in RETRIED:
        raise _wrong_status(record.job_id, record.status)
    job, request = read_request(queue, record)
    signed: dict[str, JsonValue] = {}
    if signing_key is not None:
        _require_accepted(queue, job, record, signing_key)
        terms = Terms(
            signed_at=max(int(time.time()), _last_signed(job, record) + 1), timeout=job.timeout,
            result_ttl=job.result_ttl, failure_ttl=job.failure_ttl, ttl=job.ttl, retries=RETRIES,
        )  # fmt: skip
        signed = signed_keywords(request, signing_key, terms)
    answer = run_script(
        queue.connection, "rq/retry", TEXT,
        keys=[
            keys.rq_job(job.id), queue.key, queue.failed_job_registry.key, queue.canceled_job_registry.key,
            keys.cancel(record.job_id), keys.cancel(job.id),
        ],
        args=[
            job.id, as_date(time.time()), json.dumps([FUNCTION, None, [request], signed]), RETRIES,
            "" if job.ttl is None else job.ttl,
        ],
    )  # fmt: skip
    if answer != "retried":  # it was retried, or ended otherwise, meanwhile
        raise _wrong_status(record.job_id, STATUS_BY_RQ_STATUS.get(answer, "unknown"))


def _require_accepted(queue: Queue, job: UntrustedJob, record: JobRecord, signing_key: str) -> None:
    """Raise `CannotRetry` unless the job stands in Redis as somebody with the key signed it, and as it was accepted.

    A user who may enqueue may also write another job's hash: a retry must not sign that user's request.
    """
    try:
        signature, signed_at = checked_signature(job, _request(job), signing_key)
    except InvalidConfig as error:
        raise CannotRetry(
            f"the request of job {record.job_id!r} in Redis is not the one that was signed, with its limits, under "
            "this service's key; enqueue it again",
            field="signature",
        ) from error
    if not _is_known(queue.connection, keys.accepted(record.job_id), signature, signed_at):
        raise CannotRetry(
            f"the request of job {record.job_id!r} in Redis is not the last one that was signed; enqueue it again",
            field="signature",
        )


def _is_known(connection: Redis, record: str, signature: str, signed_at: int) -> bool:
    """Whether a worker has accepted a message, or it is newer than those of the job that have ended."""
    try:
        if connection.hstrlen(record, f"carrier:{signature}"):
            return True
        is_short = connection.hstrlen(record, NEWEST_ENDED) <= MAX_DIGITS
        return is_short and signed_at > as_whole(connection.hget(record, NEWEST_ENDED) or b"0")
    except Refused:
        return False
    except ResponseError as error:
        if not is_wrong_type(error):
            raise
        return False


def _wrong_status(job_id: str, status: str) -> CannotRetry:
    advice = {"finished": "; enqueue its request under another id to train again", "unknown": ""}.get(status, "")
    return CannotRetry(
        f"job {job_id!r} is {status}; only a failed or cancelled job can be retried{advice}", field="job_id"
    )


def read_request(queue: Queue, record: JobRecord) -> tuple[UntrustedJob, dict[str, JsonValue]]:
    """Return RQ's record of a job and its request with the job's id in it.

    Raises:
        CannotRetry: the record has expired, or is that of another function.
        redis.exceptions.RedisError: Redis did not answer.
    """
    try:
        job = fetch_job(record.rq_id, queue.connection)
    except (NoSuchJobError, PoisonMessage) as error:
        raise CannotRetry(
            f"the request of job {record.job_id!r} is not in Redis any more ({error}); enqueue it again", field="job_id"
        ) from error
    request = _request(job)
    if not request or job.func_name != FUNCTION:
        raise CannotRetry(f"job {record.job_id!r} is no training; enqueue {FUNCTION!r}", field="job_id")
    return job, {**request, "job_id": record.job_id}


def _request(job: UntrustedJob) -> dict[str, JsonValue]:
    """Return the only argument of a call, as it was sent; empty where the arguments are others."""
    match job.args:
        case [dict(request)]:
            return request
    return {}


def _last_signed(job: UntrustedJob, record: JobRecord) -> int:
    """Return the time that a new signature must be later than: workers refuse one that is older than the job's end."""
    signed_at = job.kwargs.get("signed_at")
    last = signed_at if isinstance(signed_at, int) and 0 <= signed_at < MAX_NUMBER else 0
    return max(last, int(min(record.updated_at, MAX_NUMBER - 1)))
