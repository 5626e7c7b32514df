"""Enqueue a job in RQ's format, once per id."""

from pydantic import JsonValue, TypeAdapter
from redis import Redis
from redis.exceptions import ClusterError, NoPermissionError, ResponseError
from rq import Queue, Retry
from rq.utils import now

from preflight.queue.signing import Terms, signed_keywords
from preflight.redis.lua import run_script
from preflight.redis.retry import CLUSTERED, clustered, is_wrong_type
from preflight.wire import FUNCTION, STATE_TTL

RETRIES = 2
"""Retries by RQ of a job whose supervisor died."""

CREATED = TypeAdapter(bool)


def enqueue_job(
    queue: Queue, job_id: str, payload: dict[str, JsonValue], *, job_timeout: int, signing_key: str | None
) -> bool:
    """Enqueue `payload` under `job_id`, signed where there is a key; returns False where the id exists already."""
    signed: dict[str, JsonValue] = {}
    if signing_key is not None:
        terms = Terms(timeout=job_timeout, result_ttl=STATE_TTL, failure_ttl=STATE_TTL, retries=RETRIES)
        signed = signed_keywords(payload, signing_key, terms)
    job = queue.create_job(
        FUNCTION, args=(payload,), kwargs=signed, job_id=job_id, timeout=job_timeout, result_ttl=STATE_TTL,
        failure_ttl=STATE_TTL, retry=Retry(max=RETRIES), description=job_id,
    )  # fmt: skip
    job.enqueued_at = now()
    try:
        queue.connection.sadd(queue.redis_queues_keys, queue.key)
    except ResponseError as error:
        if not is_wrong_type(error):  # until a worker repairs the key, RQ's tools do not list this queue
            raise
    fields = [part for pair in job.to_dict().items() for part in pair]
    return run_script(queue.connection, "rq/enqueue", CREATED, keys=[job.key, queue.key], args=[job_id, *fields])


def require_single_server(redis: Redis) -> None:
    """Raise `redis.exceptions.ClusterError` for a cluster, which would store the job's hash but not its id."""
    try:
        if clustered(redis.info("server")):
            raise ClusterError(f"Redis {CLUSTERED}")
    except NoPermissionError:  # this user may not read INFO
        pass
