"""The client for other services: enqueue, status, events, cancel. Needs neither torch nor a worker's settings.

from worker.client import Client
from worker.wire import TrainJob

client = Client("redis://localhost:6379/0")
job_id = client.enqueue(TrainJob(type="preflight.train.v1", dataset="mnist", model="cnn")).job_id
for event in client.events(job_id):
    print(event)
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from pydantic import JsonValue, ValidationError

from worker import keys
from worker.outbox import Outbox
from worker.publish import publish
from worker.signing import sign
from worker.wire import (
    FUNCTION,
    JOB_TIMEOUT,
    LAST,
    STATE_TTL,
    AnyEvent,
    JobCancelled,
    JobState,
    Status,
    TrainJob,
    TrainResult,
    encode_job,
    is_job_id,
    unflatten,
)

if TYPE_CHECKING:
    from redis import Redis
    from rq import Queue
    from rq.job import Job

RETRIES: Final = 2
"""How often RQ runs a job again whose supervisor died."""
LOOK_EVERY: Final = 0.1
"""Seconds between two looks for new events."""
QUIET: Final = 5.0
"""Seconds without an event after which it is asked whether the job goes on at all."""
DEFAULT_OUTBOX: Final = "~/.local/share/preflight/outbox"
PAGE: Final = 1000
"""Most events read at once."""

FROM_RQ: Final[dict[str, Status]] = {
    "created": "queued", "queued": "queued", "deferred": "queued", "scheduled": "queued",
    "started": "running", "finished": "finished", "failed": "failed", "stopped": "failed",
    "canceled": "cancelled",
}  # fmt: skip
"""RQ's word -> ours, for a job that no worker has spoken about yet."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A job in the queue."""

    job_id: str
    created: bool
    """False: a job of this id was there already, and nothing was enqueued."""
    waiting: bool = False
    """Redis was away: the job waits in the outbox for `Client.resubmit`."""


class Client:
    """Talks to the queue and to the keys of the jobs."""

    def __init__(
        self, redis_url: str, *, queue: str = "preflight", signing_key: str | None = None, outbox: Path | None = None
    ) -> None:
        """Connect lazily to `redis_url`.

        Args:
            redis_url: redis://, rediss:// or unix://.
            queue: the worker's `PREFLIGHT_QUEUE`.
            signing_key: the worker's `PREFLIGHT_SIGNING_KEY`, where it has one.
            outbox: directory for the jobs that are enqueued with `ensure=True`.
        """
        # rq and redis take 0.2 s to import: whoever only builds jobs shall not wait for them.
        from redis import Redis
        from rq import Queue
        from rq.serializers import JSONSerializer

        from worker.rq_job import AnyIdJob

        self._redis: Redis = Redis.from_url(redis_url)
        self._queue: Queue = Queue(queue, connection=self._redis, job_class=AnyIdJob, serializer=JSONSerializer)
        self._signing_key = signing_key
        self._outbox = Outbox(outbox or Path(DEFAULT_OUTBOX).expanduser())

    def enqueue(self, job: TrainJob, *, job_timeout: int = JOB_TIMEOUT, ensure: bool = False) -> Handle:
        """Put a job into the queue, once: its `job_id` is the idempotency key.

        Args:
            job: what to train; without `job_id` it gets one.
            job_timeout: seconds after which the job is given up.
            ensure: keep the job in the outbox until it has ended, so that `resubmit` can enqueue it again should
                Redis be away now or lose its data later.

        Raises:
            InvalidConfig: the job is larger than 64 KiB. Whether its data set and model are registered is for
                the worker to say, whose packages count.
            OSError: the outbox cannot be written.
            redis.exceptions.RedisError: Redis did not take it; with `ensure` that is told by the handle instead.
        """
        from redis.exceptions import ConnectionError, TimeoutError

        job_id = job.job_id or uuid.uuid4().hex
        payload = {**job.model_dump(mode="json", exclude_unset=True), "job_id": job_id}
        encode_job(payload)
        if not ensure:
            return self._enqueue(job_id, payload, job_timeout)
        self._outbox.keep(job_id, payload, job_timeout)
        try:
            return self._enqueue(job_id, payload, job_timeout)
        except (ConnectionError, TimeoutError):
            return Handle(job_id, created=False, waiting=True)

    def resubmit(self) -> list[str]:
        """Enqueue again, under their ids, the jobs of the outbox that Redis knows nothing of; drop those that ended.

        Returns the ids that were enqueued.

        Raises:
            redis.exceptions.RedisError: Redis did not answer.
        """
        return [job_id for job_id in self._outbox.ids() if self._resubmitted(job_id)]

    def _resubmitted(self, job_id: str) -> bool:
        kept = self._outbox.find(job_id)
        if kept is None:
            return False
        match self.status(job_id).status:
            case "unknown":
                payload = {**kept.job.model_dump(mode="json", exclude_unset=True), "job_id": job_id}
                return self._enqueue(job_id, payload, kept.job_timeout).created
            case "finished" | "failed" | "cancelled":
                self._outbox.forget(job_id)
        return False

    def _enqueue(self, job_id: str, payload: dict[str, JsonValue], job_timeout: int) -> Handle:
        from rq import Retry
        from rq.exceptions import DuplicateJobError

        signature = {} if self._signing_key is None else {"signature": sign(payload, self._signing_key)}
        try:
            self._queue.enqueue(
                FUNCTION, args=(payload,), kwargs=signature, job_id=job_id, unique=True, job_timeout=job_timeout,
                result_ttl=STATE_TTL, failure_ttl=STATE_TTL, retry=Retry(max=RETRIES), description=job_id,
            )  # fmt: skip
        except DuplicateJobError:
            return Handle(job_id, created=False)
        return Handle(job_id, created=True)

    def status(self, job_id: str) -> JobState:
        """Return the latest of everything about a job; status `unknown` where Redis knows nothing of it.

        What others have put into the job's keys and cannot be read is passed over.
        """
        known = {name: value for name, value in self._hash(keys.state(job_id)).items() if name in JobState.model_fields}
        rq_status: Status = self._rq_status(job_id) or "unknown"
        own_status = known.get("status", rq_status)
        # A supervisor that was killed cannot say so, and none knows that its job will be run again.
        outdated = (own_status, rq_status) in (("running", "failed"), ("running", "queued"), ("failed", "queued"))
        if outdated or own_status not in get_args(Status):
            own_status = rq_status
        try:
            return JobState.model_validate({**known, "job_id": job_id, "status": own_status})
        except ValidationError:
            return JobState.model_validate({"job_id": job_id, "status": own_status})

    def _rq_status(self, job_id: str) -> Status | None:
        """Return RQ's word on a job; None where it has none."""
        return FROM_RQ.get(self._hash(self._queue.job_class.key_for(job_id), "status").get("status", ""))

    def _hash(self, key: str, *fields: str) -> dict[str, str]:
        """Return the hash at `key`, or those `fields` of it; empty where there is none, or something else."""
        from redis.exceptions import ResponseError

        try:
            if fields:
                values = zip(fields, self._redis.hmget(key, fields), strict=True)
                return {name: _text(value) for name, value in values if value is not None}
            return _decoded(self._redis.hgetall(key))
        except ResponseError:
            return {}

    def result(self, job_id: str) -> TrainResult | None:
        """Return the result of a finished job, None for any other."""
        stored = self._redis.get(keys.result(job_id))
        return TrainResult.model_validate_json(stored) if stored is not None else None

    def events(self, job_id: str, *, after: str = "0", timeout: float | None = None) -> Iterator[AnyEvent]:
        """Yield a job's events as they come, until it has ended.

        Args:
            job_id: which job.
            after: id of the stream record to go on after; `0` begins at the oldest that is kept.
            timeout: seconds without any event after which the iteration ends; None waits for ever.
        """
        heard, over = time.monotonic(), False
        while timeout is None or time.monotonic() - heard < timeout:
            records = self._records(job_id, after)
            for record_id, fields in records:
                after, heard = record_id, time.monotonic()
                event = _decode(fields)
                if event is not None:
                    over = event.type in LAST
                    yield event
            # Without a last event: killed, expired, or of a version that is not read here.
            over = over or time.monotonic() - heard > QUIET
            if over and not records and not self._resubmitted(job_id) and not self._goes_on(job_id):
                # It may have ended between the two looks.
                yield from (event for _, fields in self._records(job_id, after) if (event := _decode(fields)))
                return

    def _records(self, job_id: str, after: str) -> list[tuple[str, dict[str, str]]]:
        """Return the stream records behind `after`; when there are none, after a moment's wait."""
        records = self._redis.xrange(keys.events(job_id), min=f"({after}", count=PAGE) or []
        if not records:
            time.sleep(LOOK_EVERY)
        return [(_text(record_id), _decoded(fields)) for record_id, fields in records]

    def _goes_on(self, job_id: str) -> bool:
        """Whether more is to be expected of the job: it waits, runs, or is run again after a failure.

        RQ decides on a retry a moment after the job has said that it failed, so its word counts where it has one.
        """
        return (self._rq_status(job_id) or self.status(job_id).status) in ("queued", "running")

    def cancel(self, job_id: str) -> bool:
        """Ask a job to stop: taken from the queue at once, or stopped within a step when it runs.

        Returns False when there is no such job, or it has ended.
        """
        from redis.exceptions import NoPermissionError

        status = self.status(job_id).status
        if status not in ("queued", "running"):
            return False
        self._redis.hset(keys.cancel(job_id), "at", str(time.time()))
        try:
            self._redis.expire(keys.cancel(job_id), STATE_TTL)
            self._take_out(job_id)
        except NoPermissionError:
            return True  # a producer may only ask; the worker that takes the job hears it
        return True

    def _take_out(self, job_id: str) -> None:
        """Cancel a job that still waits in the queue."""
        rq_job = self._rq_job(job_id)
        if rq_job is not None and self._redis.lrem(self._queue.key, 1, job_id):
            rq_job.cancel()
            self._say_cancelled(job_id)
            self._redis.delete(keys.cancel(job_id))

    def jobs(self) -> list[JobState]:
        """Return the state of every job that RQ still knows, oldest first."""
        registries = (
            self._queue.started_job_registry,
            self._queue.finished_job_registry,
            self._queue.failed_job_registry,
            self._queue.canceled_job_registry,
        )
        # Read as they are: RQ's own reading changes the queue, and stumbles over what is no text.
        entries = [entry for registry in registries for entry in self._redis.zrange(registry.key, 0, -1)]
        entries += self._redis.lrange(self._queue.key, 0, -1)
        ids = dict.fromkeys(_text(entry).partition(":")[0] for entry in entries)  # of those that run, `id:execution`
        states = [self.status(job_id) for job_id in ids if is_job_id(job_id)]
        return sorted(states, key=lambda state: state.updated_at or time.time())

    def _rq_job(self, job_id: str) -> Job | None:
        try:
            return self._queue.job_class.fetch(job_id, connection=self._redis, serializer=self._queue.serializer)
        except Exception:
            return None  # none, or what is there is no job: RQ raises whatever its parts do

    def _say_cancelled(self, job_id: str) -> None:
        event = JobCancelled(seq=0, job_id=job_id, attempt=0, ts=time.time(), message="cancelled in the queue")
        publish(self._redis, event, ttl=STATE_TTL)


def _decode(fields: dict[str, str]) -> AnyEvent | None:
    """Return the event in a stream record; None for one of a newer version or from somebody else."""
    try:
        return unflatten(fields)
    except ValidationError:
        return None


def _text(value: object) -> str:
    """Return what Redis sent as text; RQ needs a connection that decodes nothing."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _decoded(fields: Mapping[bytes | str, bytes | str] | None) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in (fields or {}).items()}
