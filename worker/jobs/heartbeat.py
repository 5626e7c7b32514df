"""What a job does, from the request to the result."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog
from pydantic import TypeAdapter, ValidationError
from redis import Redis
from redis.exceptions import RedisError

from training.config.plan import Plan
from training.errors import ArtifactError, Cancelled, InvalidConfig, PreflightError, TimedOut, named
from training.system.requirements import require_onnx_packages
from training.system.resources import detect
from worker.broker import keys
from worker.broker.fencing import Fence, Superseded
from worker.broker.retry import insist
from worker.config.settings import Settings
from worker.events.redis_sink import LogSink, RedisSink
from worker.events.spool import Spool
from worker.exporters.tensorboard import drawing
from worker.jobs.paths import Places, places
from worker.jobs.pipeline import Interrupted, Run
from worker.queue.untrusted_job import SafeJob
from worker.wire import JobFailed, TrainJob, TrainResult, is_job_id, read_result

BEAT_EVERY: Final = 1.0
"""Seconds between two signs of life, each of which also hears of a cancellation."""
LAST_WORDS: Final = 1.0
"""Seconds for which an interrupted job waits for Redis to take its events; what is left stays in the spool."""

LOW_MEMORY_SHARE: Final = 0.05
"""Share of the container's memory below which a worker that vanishes was probably killed for memory."""

PLAN = TypeAdapter(Plan)


def run_job(run: Run, job: TrainJob) -> TrainResult:
    """Take a job through its stages and return its result; with or without Redis.

    Raises:
        PreflightError: the job failed, under the reason that the class names.
        Interrupted: the worker was told to stop.
        Superseded: a newer attempt has taken over.
    """
    try:
        spec = job.spec()
        run.started(job, spec)
        if job.onnx:
            require_onnx_packages()
        resources = run.resources()
        store = run.dataset(job)
        choice = run.plan(job, spec, resources, store)
        return run.training(job, spec, choice, resources, store)
    except Cancelled as error:
        return run.cancelled(error)
    except PreflightError as error:
        raise run.failed(error) from error
    except (Interrupted, Superseded, RedisError):
        raise
    except Exception as error:
        # A fault of ours: watchers shall learn of the end all the same.
        raise run.failed(PreflightError(f"{type(error).__name__}: {error}; please report it")) from error


Outcome = TrainResult | PreflightError
"""What a job ends with."""


def execute(
    job: TrainJob, job_id: str, rq_job: SafeJob, fence: Fence, connection: Redis, settings: Settings, worker: str,
    told_to_stop: Callable[[], bool], restore: Callable[[], None], book: Callable[[Outcome], None],
) -> None:  # fmt: skip
    """Run the attempt that `fence` has claimed, and `book` its outcome once Redis has taken all its events.

    Should Redis lose its data between the two, both are done again: only then may the spool go.

    Args:
        job: the request.
        job_id: under which it is known.
        rq_job: RQ's job around it.
        fence: of the attempt.
        connection: to Redis.
        settings: of the service.
        worker: name of the worker.
        told_to_stop: whether the worker was.
        restore: restores RQ's records of the job; called when Redis has lost its data.
        book: takes the result, or why there is none; raises `redis.exceptions.RedisError` to be called again.

    Raises:
        PreflightError: the job could not begin.
        Interrupted: the worker was told to stop; the job's checkpoint is on disk.
        Superseded: a newer attempt has taken over.
    """
    where = places(settings, job_id, fence.attempt)
    spool = _spool(where, job_id, fence.attempt)
    published = RedisSink(fence, spool, keys.rq_job(rq_job.id), kept=settings.events_kept, meta=dict(rq_job.meta))
    watch = AttemptWatch(fence, published, told_to_stop, restore, timeout=rq_job.timeout)
    run = Run(
        settings=settings,
        worker=worker,
        job_id=job_id,
        attempt=fence.attempt,
        sinks=(LogSink(job_id, fence.attempt), published, *drawing(settings, job, job_id, fence.attempt)),
        places=where,
        watch=watch,
        keeper=RedisKeeper(connection, job_id, settings.state_ttl, watch.pulse),
    )
    try:
        outcome = _outcome(run, job, lambda: _told_before(connection, fence, watch, job_id))
        watch.settle(lambda: book(outcome))
    except Interrupted:
        watch.part(LAST_WORDS)
        raise
    finally:
        spool.close()
        where.close()
    if isinstance(outcome, TrainResult) and outcome.status == "finished":
        where.clear()


def _outcome(run: Run, job: TrainJob, told_before: Callable[[], Outcome | None]) -> Outcome:
    """Return the outcome of an earlier attempt, else of this one."""
    try:
        return told_before() or run.adopted(job) or run_job(run, job)
    except Cancelled as error:  # while an adopted model was sent elsewhere
        return run.cancelled(error)
    except PreflightError as error:
        return error
    except Interrupted:
        message = f"worker {run.worker} was told to stop; the job goes on with the next one"
        run.say("job_interrupted", {"message": message})
        raise


def _spool(where: Places, job_id: str, attempt: int) -> Spool:
    try:
        return Spool(where.job, job_id, attempt)
    except OSError as error:
        raise ArtifactError(
            f"{where.attempt} cannot be written ({error.strerror}); make room or set PREFLIGHT_STATE_DIR"
        ) from error


def _told_before(connection: Redis, fence: Fence, watch: "AttemptWatch", job_id: str) -> Outcome | None:
    """Return the outcome of an earlier attempt, which died before its end was recorded with RQ.

    Its last events may lie on this disk, because Redis had not taken them.
    """
    if fence.attempt == 1:
        return None
    watch.drain()
    result = insist(lambda: stored_result(connection, job_id), "read the result of earlier attempts", watch.look)
    return result or published_failure(insist(fence.failure, "read the failure of earlier attempts", watch.look))


def published_failure(stored: str | None) -> PreflightError | None:
    """Return the failure that an attempt published; None for what is none."""
    try:
        event = JobFailed.model_validate_json(stored, extra="ignore") if stored is not None else None
    except ValidationError:
        return None
    if event is None:
        return None
    error = named(event.reason, event.message, event.field)
    error.told = True
    return error


class StoredResultUnreadable(PreflightError):
    """What stands in the place of a job's result is none."""


def stored_result(connection: Redis, job_id: str) -> TrainResult | None:
    """Return the result of a finished job; raises `StoredResultUnreadable`, `redis.exceptions.RedisError`."""
    stored = connection.get(keys.result(job_id))
    if stored is None:
        return None
    try:
        return read_result(stored)
    except ValidationError as error:
        raise StoredResultUnreadable(
            f"the result that is stored under {job_id} cannot be read ({error.error_count()} fields are wrong)"
        ) from error


def effective_id(arguments: Sequence[object], rq_id: str) -> str:
    """Return the id under which a job is known: the request's own, else RQ's.

    A malformed own id is passed over here, so that its failure can be told under RQ's id.

    Raises:
        InvalidConfig: RQ's id cannot serve either.
    """
    match arguments:
        case [{"job_id": str(own)}, *_] if is_job_id(own):
            return own
    if not is_job_id(rq_id):
        raise InvalidConfig(
            f"job_id is {ascii(rq_id)[:80]}, but must be 1 to 64 letters, digits, '.', '_' or '-'",
            field="job_id",
        )
    return rq_id


class AttemptWatch:
    """Looks after an attempt: renews its lease, publishes what is pending, hears what shall end it."""

    def __init__(
        self, fence: Fence, published: RedisSink, told_to_stop: Callable[[], bool], restore: Callable[[], None], *,
        timeout: float | None,
    ) -> None:  # fmt: skip
        self._fence = fence
        self._published = published
        self._told_to_stop = told_to_stop
        self._restore = restore
        self._timeout = timeout if timeout is not None and timeout > 0 else None
        self._began = time.monotonic()
        self._next = 0.0
        self._further = False
        self._cancelled = False

    def look(self) -> None:
        """Keep the attempt alive.

        Raises:
            Interrupted: the worker was told to stop.
            Cancelled: somebody asked for it.
            TimedOut: the job's time is over.
            Superseded: a newer attempt has taken over.
        """
        self._see_whether_told_to_stop()
        self.pulse()
        if self._cancelled:
            raise Cancelled("cancelled on request")
        if self._timeout is not None and time.monotonic() - self._began > self._timeout:
            raise TimedOut(f"the job ran longer than {self._timeout:g} s; enqueue it with a longer job_timeout")

    def pulse(self) -> None:
        """Renew the lease and publish what is pending; raises `Superseded`."""
        self._published.pump()
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + BEAT_EVERY
        try:
            self._beat()
        except RedisError:
            return  # away; the sink says so

    def further(self) -> None:
        """Note that the attempt has come further than those before it."""
        self._further = True

    def certain(self) -> None:
        """Return once Redis has confirmed that no newer attempt has taken over.

        Raises:
            Superseded: one has.
            Interrupted: the worker was told to stop meanwhile.
        """
        insist(self._beat, "publish the model", self._see_whether_told_to_stop)

    def drain(self) -> None:
        """Return once Redis has taken every event; raises as `certain` does."""
        while not self._published.pump():
            self._see_whether_told_to_stop()
            time.sleep(0.05)
            self.pulse()

    def settle(self, book: Callable[[], None]) -> None:
        """Return once Redis has every event, and `book` has been called after that; raises as `certain` does, or it."""

        def booked() -> bool:
            if not self._published.confirmed():
                return False  # it came back empty, and nothing shall be booked before it is told
            book()
            return self._published.confirmed()

        self.drain()
        while not insist(booked, "book how the job ended", self._wait):
            self.drain()

    def _wait(self) -> None:
        self._see_whether_told_to_stop()
        self.pulse()

    def part(self, seconds: float) -> None:
        """Publish what Redis takes within `seconds`; the rest stays in the spool."""
        deadline = time.monotonic() + seconds
        while not self._published.pump() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _beat(self) -> None:
        beat = self._fence.beat(further=self._further, low_memory=memory_is_low())
        self._cancelled = beat.cancelled
        if beat.records_lost:
            self._restore()

    def _see_whether_told_to_stop(self) -> None:
        if self._told_to_stop():
            raise Interrupted


def memory_is_low() -> bool:
    """Whether this container has less than `LOW_MEMORY_SHARE` of its memory left."""
    found = detect()
    return found.headroom_bytes < LOW_MEMORY_SHARE * found.memory_bytes


class RedisKeeper:
    """Keeps the plan of a deterministic job through all its attempts; the checkpoints keep it too."""

    def __init__(self, connection: Redis, job_id: str, ttl: int, pulse: Callable[[], None]) -> None:
        self._connection = connection
        self._key = keys.plan(job_id)
        self._ttl = ttl
        self._pulse = pulse

    def get(self) -> Plan | None:
        """Return the plan of an earlier attempt, waiting for Redis where it is away."""
        stored = insist(lambda: self._connection.get(self._key), "read the plan of earlier attempts", self._pulse)
        try:
            return PLAN.validate_json(stored) if stored is not None else None
        except ValidationError:
            return None  # of another version; a plan is chosen anew

    def put(self, plan: Plan) -> None:
        """Keep the plan; without Redis the first checkpoint will."""
        try:
            self._connection.set(self._key, PLAN.dump_json(plan), ex=self._ttl)
        except RedisError as error:
            structlog.get_logger("preflight").warning("plan_not_kept", error=str(error))
