"""What a job does, from the request to the result; `train` is the one function that a queue may name."""

import tempfile
import time
from pathlib import Path
from typing import Final

from pydantic import JsonValue, TypeAdapter, ValidationError
from redis import Redis
from redis.exceptions import RedisError
from rq import get_current_job
from rq.job import Job
from rq.timeouts import JobTimeoutException

from training.errors import Cancelled, InvalidConfig, PreflightError, TimedOut
from training.plan import Plan
from worker import keys
from worker.run import Run
from worker.settings import load
from worker.sinks import LogSink, MetaSink, RedisSink
from worker.wire import TrainJob, TrainResult, is_job_id, parse_job

CANCEL_EVERY: Final = 0.25
"""Seconds between two looks at the cancel key."""
LAST_WORDS: Final = 30.0
"""Seconds for which a job that has ended waits for Redis to take its last events."""

PLAN = TypeAdapter(Plan)


def run_job(run: Run, job: TrainJob) -> TrainResult:
    """Take a job through its stages and return its result; with or without Redis.

    Raises:
        PreflightError: the job failed, under the reason that the class names.
    """
    try:
        spec = job.spec()
        run.started(spec)
        resources = run.resources()
        store = run.dataset(spec.dataset)
        choice = run.plan(job, spec, resources, store)
        figures = run.training(spec, choice, resources, store)
    except Cancelled as error:
        run.say("job_cancelled", {"message": error.message})
        return TrainResult(job_id=run.job_id, attempt=run.attempt, status="cancelled")
    except JobTimeoutException as error:
        raise run.failed(TimedOut(f"{error}; enqueue it with a longer job_timeout")) from error
    except PreflightError as error:
        raise run.failed(error) from error
    except Exception as error:
        # A fault of ours: watchers shall learn of the end all the same.
        raise run.failed(PreflightError(f"{type(error).__name__}: {error}; please report it")) from error
    return TrainResult.model_validate(
        {**figures, "job_id": run.job_id, "attempt": run.attempt, "status": "finished", "plan": choice.plan}
    )


def train(*arguments: object, **keywords: object) -> dict[str, JsonValue]:
    """Run the job that RQ hands over: one positional argument, the TrainJob object.

    Returns the result as a plain dict; that of an earlier execution when the job was finished before.

    Raises:
        PreflightError: the job failed; RQ retries it only where that could help.
    """
    rq_job = get_current_job()
    if rq_job is None:
        raise RuntimeError("worker.jobs.train is called by an RQ worker; use `preflight train` without one")
    try:
        job_id = effective_id(arguments, rq_job.id)
        stored = rq_job.connection.get(keys.result(job_id))
        result = (
            TrainResult.model_validate_json(stored)
            if stored is not None
            else _execute(rq_job, job_id, arguments, keywords)
        )
    except PreflightError as error:
        if not error.retry:
            rq_job.retries_left = 0
        raise
    return result.model_dump(mode="json", exclude_none=True)


def _execute(rq_job: Job, job_id: str, arguments: tuple[object, ...], keywords: dict[str, object]) -> TrainResult:
    settings, connection = load(), rq_job.connection
    attempt = int(connection.incr(keys.attempt(job_id)))
    published = RedisSink(connection, job_id, ttl=settings.state_ttl, kept=settings.events_kept)
    with tempfile.TemporaryDirectory(prefix="preflight-") as directory:
        run = Run(
            settings=settings,
            worker=rq_job.worker_name or "",
            job_id=job_id,
            attempt=attempt,
            sinks=(LogSink(job_id, attempt), published, MetaSink(rq_job)),
            directory=Path(directory),
            tick=CancelWatch(connection, job_id, published),
            keeper=RedisKeeper(connection, job_id, settings.state_ttl),
        )
        try:
            result = run_job(run, _request(run, arguments, keywords))
        finally:
            published.drain(LAST_WORDS)
    if result.status == "finished":
        connection.set(keys.result(job_id), result.model_dump_json(), ex=settings.state_ttl)
    else:
        connection.delete(keys.cancel(job_id))  # heard; it shall not stop a later job of this id
    return result


def _request(run: Run, arguments: tuple[object, ...], keywords: dict[str, object]) -> TrainJob:
    """Return the job in the call's arguments; what is wrong with it is said before it is raised."""
    try:
        if len(arguments) != 1 or keywords:
            raise InvalidConfig(
                f"worker.jobs.train got {len(arguments)} positional and {len(keywords)} keyword arguments, "
                "but takes one positional argument; send the TrainJob object"
            )
        return parse_job(arguments[0])
    except InvalidConfig as error:
        raise run.failed(error) from error


def effective_id(arguments: tuple[object, ...], rq_id: str) -> str:
    """Return the id under which a job is known: the request's own, else RQ's.

    A malformed own id is passed over here, so that its failure can be told under RQ's id.

    Raises:
        InvalidConfig: RQ's id cannot serve either.
    """
    match arguments:
        case ({"job_id": str(own)}, *_) if is_job_id(own):
            return own
    if not is_job_id(rq_id):
        raise InvalidConfig(
            f"job_id is {ascii(rq_id)[:80]}, but must be 1 to 64 letters, digits, '.', '_' or '-'",
            field="job_id",
        )
    return rq_id


class CancelWatch:
    """Between two looks at a child: publishes what is pending, and raises `Cancelled` when somebody asked."""

    def __init__(self, connection: Redis, job_id: str, published: RedisSink) -> None:
        self._connection = connection
        self._key = keys.cancel(job_id)
        self._published = published
        self._next = 0.0

    def __call__(self) -> None:
        """Look, but not more often than every `CANCEL_EVERY` seconds."""
        self._published.pump()
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + CANCEL_EVERY
        try:
            asked = self._connection.exists(self._key)
        except RedisError:
            return  # away; the sink says so
        if asked:
            raise Cancelled("cancelled on request")


class RedisKeeper:
    """Keeps the plan of a deterministic job through all its attempts."""

    def __init__(self, connection: Redis, job_id: str, ttl: int) -> None:
        self._connection = connection
        self._key = keys.plan(job_id)
        self._ttl = ttl

    def get(self) -> Plan | None:
        """Return the plan of an earlier attempt."""
        stored = self._connection.get(self._key)
        try:
            return PLAN.validate_json(stored) if stored is not None else None
        except ValidationError:
            return None  # of another version; a plan is chosen anew

    def put(self, plan: Plan) -> None:
        """Keep the plan."""
        self._connection.set(self._key, PLAN.dump_json(plan), ex=self._ttl)
