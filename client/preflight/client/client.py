"""`Client`: the API of the queue. Redis and RQ take 0.2 s to import, so they are imported when a client is made."""

from __future__ import annotations

import json
import uuid
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from preflight.client.outbox import Outbox
from preflight.client.results import DEFAULT_LIMIT, IDLE_SECONDS, EnqueueResult, Silence
from preflight.config.directories import local_path
from preflight.config.values import clean
from preflight.errors import InvalidConfig
from preflight.redis import keys
from preflight.redis.url import parse as parse_redis_url
from preflight.wire import (
    ACTIVE_STATUSES,
    JOB_TIMEOUT,
    AnyEvent,
    JobState,
    Status,
    TrainJob,
    TrainResult,
    encode_job,
    read_job,
)

if TYPE_CHECKING:
    from rq import Queue

    from preflight.client.delete import Deletion
    from preflight.client.notes import Notes

DEFAULT_OUTBOX: Final = "~/.local/share/preflight/outbox"


class Client:
    """Enqueues, watches, cancels and retries jobs; every method takes a job's id, or RQ's where that is another."""

    def __init__(
        self, redis_url: str, *, queue: str = "preflight", signing_key: str | None = None, outbox: Path | None = None
    ) -> None:
        """Connect lazily to `redis_url`.

        Args:
            redis_url: as `REDIS_URL`: redis://, rediss:// or unix://, with the parameters that
                docs/reference/configuration.md lists.
            queue: the worker's `PREFLIGHT_QUEUE`.
            signing_key: the worker's `PREFLIGHT_SIGNING_KEY`, where it has one.
            outbox: directory for the jobs that are enqueued with `ensure=True`.

        Raises:
            InvalidConfig: `redis_url` is no address of a Redis server.
        """
        from rq import Queue
        from rq.serializers import JSONSerializer

        from preflight.client.job_ids import AnyIdJob
        from preflight.redis.connection import PATIENCE, open_redis

        address = parse_redis_url(redis_url, "redis_url")
        if (note := address.note("redis_url")) is not None:
            warnings.warn(note, stacklevel=2)
        self._redis = open_redis(address.url, retries=PATIENCE)
        # Subscribers retry themselves; pauses between retries would block them for seconds.
        self._no_retry = open_redis(address.url, seconds=IDLE_SECONDS)
        self._queue: Queue = Queue(queue, connection=self._redis, job_class=AnyIdJob, serializer=JSONSerializer)
        self._signing_key = signing_key and clean(signing_key)
        self._is_single_server = False
        self._outbox = Outbox(outbox or local_path(DEFAULT_OUTBOX))

    def enqueue(self, job: TrainJob, *, job_timeout: int = JOB_TIMEOUT, ensure: bool = False) -> EnqueueResult:
        """Enqueue a job once: its `job_id` is the idempotency key.

        Args:
            job: what to train; without `job_id` it gets one.
            job_timeout: limit of the job's duration, seconds.
            ensure: keep the job in the outbox until it has ended, so that `resubmit` can enqueue it again where
                Redis is unavailable now or loses its data later.

        Raises:
            InvalidConfig: the job is larger than 64 KiB, or its id is that of a deleted one. The worker checks whether
                its data set and model exist.
            OSError: the outbox cannot be written.
            redis.exceptions.RedisError: Redis refused the job, or is a cluster; with `ensure`, a connection error is
                not raised but in the result.
        """
        from redis.exceptions import ConnectionError, TimeoutError

        from preflight.client.delete import require_not_deleted

        job_id = job.job_id or uuid.uuid4().hex
        payload = _payload(job, job_id)
        encode_job(payload)
        if ensure:
            self._outbox.save(job_id, payload, job_timeout)
        try:
            self._require_single_server()
            if job.job_id is not None:
                require_not_deleted(self._redis, job_id)
            created = self._enqueue(job_id, payload, job_timeout)
        except (ConnectionError, TimeoutError):
            if not ensure:
                raise
            return EnqueueResult(job_id, created=False, waiting=True)
        return EnqueueResult(job_id, created=created)

    def is_repeated(self, job_id: str, job: TrainJob) -> bool | None:
        """Return whether the job of this id asks for the same as `job`; None where it is gone.

        Also None where this user may not read it: a producer need not ask.
        """
        from redis.exceptions import RedisError

        try:
            request = self.request(job_id)
            return None if request is None else read_job(request).digest() == job.digest()
        except (RedisError, InvalidConfig):
            return None

    def _enqueue(self, job_id: str, payload: dict[str, JsonValue], job_timeout: int) -> bool:
        from preflight.client.enqueue import enqueue_job

        self._require_single_server()
        return enqueue_job(self._queue, job_id, payload, job_timeout=job_timeout, signing_key=self._signing_key)

    def _require_single_server(self) -> None:
        from preflight.client.enqueue import require_single_server

        if not self._is_single_server:
            require_single_server(self._redis)
            self._is_single_server = True

    def resubmit(self) -> list[str]:
        """Enqueue the jobs of the outbox that Redis has lost, delete those that ended; return the ids enqueued.

        Raises:
            redis.exceptions.RedisError: Redis did not answer.
        """
        return [job_id for job_id in self._outbox.ids() if self._resubmit(job_id)]

    def _resubmit(self, job_id: str) -> bool:
        from preflight.client.delete import deleted_at
        from preflight.client.job_state import read_job

        entry = self._outbox.find(job_id)
        if entry is None:
            return False
        status = read_job(self._redis, job_id).status  # the outbox has jobs of one id only
        is_deleted = deleted_at(self._redis, job_id) is not None
        if is_deleted or status not in (*ACTIVE_STATUSES, "unknown"):
            self._outbox.delete(job_id)
            return False
        # RQ's hash or a running attempt, which restores that hash; a state alone was published after a data loss.
        exists = status != "unknown" and self._redis.exists(keys.rq_job(job_id), keys.lease(job_id))
        return not exists and self._enqueue(job_id, _payload(entry.job, job_id), entry.job_timeout)

    def status(self, job_id: str) -> JobState:
        """Return the state of a job; status `unknown` where Redis has no such job. Invalid fields are ignored.

        Raises:
            redis.exceptions.NoPermissionError: this user may enqueue, but not read.
        """
        from preflight.client.job_state import read_job, stored_failure, with_requests

        (record,) = with_requests(self._redis, [read_job(self._redis, job_id, self._queue)])
        state = record.state()
        if state.status != "failed" or state.reason is not None:
            return state
        return state.model_copy(update=stored_failure(self._redis, record.rq_id))  # a killed worker publishes no event

    def resolve(self, job_id: str) -> str:
        """Return the id that a job's events have; RQ's leads to it once a worker has taken the job.

        Raises:
            redis.exceptions.NoPermissionError: this user may enqueue, but not read.
        """
        from preflight.client.job_ids import resolve

        return resolve(self._no_retry, job_id)

    def result(self, job_id: str) -> TrainResult | None:
        """Return the result of a finished job; None where there is none, or it cannot be read."""
        from preflight.client.job_state import read_job_result

        return read_job_result(self._redis, job_id)

    def events(self, job_id: str, *, after: str = "0", timeout: float | None = None) -> Iterator[AnyEvent]:
        """Yield a job's events until it has ended, waiting where Redis is unavailable.

        Args:
            job_id: the job.
            after: id of the last stream record already read; `0`: from the oldest.
            timeout: seconds without an event that end the iteration; None: no limit.
        """
        for item in self.follow(job_id, after=after, timeout=timeout):
            if not isinstance(item, Silence):
                yield item

    def follow(self, job_id: str, *, after: str = "0", timeout: float | None = None) -> Iterator[AnyEvent | Silence]:
        """Yield the same events as `events`, and a `Silence` for each poll without an event.

        No event comes twice, even where Redis lost its data and all were published again.

        Raises:
            redis.exceptions.RedisError: a permanent error, such as a refused password or a key of another type.
        """
        from preflight.client.subscribe import subscribe

        def resubmit() -> bool:
            return self._resubmit(job_id)

        return subscribe(self._no_retry, self._queue, job_id, after=after, timeout=timeout, resubmit=resubmit)

    def lifecycle_events(self, job_id: str) -> list[AnyEvent]:
        """Return the events of a job that are never trimmed, oldest first."""
        from preflight.client.subscribe import read_lifecycle_events

        return read_lifecycle_events(self._no_retry, self.resolve(job_id))

    def is_active(self, job_id: str) -> bool:
        """Whether more events are expected: the job is queued, runs, or is retried after a failure."""
        from preflight.client.job_state import read_job

        return read_job(self._no_retry, job_id, self._queue).is_active

    def position(self, job_id: str) -> int | None:
        """Return the number of jobs before this one in the queue; None where it is not queued."""
        from redis.exceptions import ResponseError

        from preflight.client.job_state import read_job

        try:
            found = self._no_retry.lpos(self._queue.key, read_job(self._no_retry, job_id, self._queue).rq_id)
        except ResponseError:  # a key of another type, or no permission
            return None
        return found if isinstance(found, int) else None

    def workers(self) -> int | None:
        """Return how many workers take jobs of the queue; None where this user may not ask, or Redis is away.

        A killed worker counts until Redis forgets it, for less than a minute.
        """
        from redis.exceptions import RedisError

        try:
            return self._no_retry.scard(keys.rq_workers(self._queue.name))
        except RedisError:
            return None

    def suspended(self) -> bool:
        """Return whether `rq suspend` keeps workers from taking jobs."""
        return bool(self._redis.exists(keys.RQ_SUSPENDED))

    def datasets(self) -> frozenset[str]:
        """Return the data sets of the queue's workers; none where no worker has published any, or Redis is away."""
        from redis.exceptions import RedisError

        from preflight.client.datasets import read_datasets

        try:
            return read_datasets(self._no_retry, self._queue.name)
        except RedisError:
            return frozenset()

    def cancel(self, job_id: str) -> bool:
        """Cancel a job: a queued one at once, a running one within a step; returns False where it is not active."""
        from preflight.client.cancel import cancel_job
        from preflight.client.job_state import read_job

        record = read_job(self._redis, job_id, self._queue)
        if record.status not in ACTIVE_STATUSES:
            return False
        cancel_job(self._queue, record)
        return True

    def request(self, job_id: str) -> dict[str, JsonValue] | None:
        """Return the request of a job as it was enqueued; None where Redis has it no more."""
        from preflight.client.job_state import read_job
        from preflight.client.retry import CannotRetry, read_request

        try:
            request = read_request(self._queue, read_job(self._redis, job_id, self._queue))[1]
            json.dumps(request, allow_nan=False, ensure_ascii=False).encode()
        except (CannotRetry, ValueError):  # NaN, or half a character: it is no JSON for anybody else
            return None
        return request

    def notes(self, job_id: str) -> Notes:
        """Return the note and the tags of a job; both are empty where nobody gave it any."""
        from preflight.client.notes import Notes

        own = self.resolve(job_id)
        return self.notes_of([own]).get(own, Notes())

    def notes_of(self, job_ids: Sequence[str]) -> Mapping[str, Notes]:
        """Return job id -> note and tags, of those jobs that have any."""
        from preflight.client.notes import read_notes

        return read_notes(self._redis, job_ids)

    def annotate(self, job_id: str, *, note: str | None = None, tags: Collection[str] | None = None) -> Notes:
        """Give a job a note or tags, in place of those it has; None leaves them. They are kept for 30 days.

        Raises:
            InvalidConfig: a text is too long, there are too many tags, or there is no such job.
        """
        from preflight.client.notes import write_notes

        state = self.status(job_id)
        if state.status == "unknown":
            raise InvalidConfig(f"job {job_id!r} is not known; `preflight jobs` lists those that are", field="job_id")
        given: dict[str, object] = {} if note is None else {"note": note}
        if tags is not None:
            given["tags"] = [*tags]
        return write_notes(self._redis, state.job_id, given)

    def retry(self, job_id: str) -> str:
        """Enqueue a failed or cancelled job again, under its id; it resumes from its checkpoint. Returns the job's id.

        Raises:
            preflight.client.retry.CannotRetry: it has not failed and was not cancelled, or its request has expired.
        """
        from preflight.client.job_state import read_job
        from preflight.client.retry import retry_job

        record = read_job(self._redis, job_id, self._queue)
        retry_job(self._queue, record, signing_key=self._signing_key)
        return record.job_id

    def delete(self, job_id: str, *, by: str = "client") -> str:
        """Have a worker delete a job that has ended: its records, its model and its checkpoints. Returns the job's id.

        What was exported stays. The id is not trained again. A job whose model an alias stands for is not deleted:
        `deletion` says why a worker refused.

        Raises:
            preflight.client.delete.CannotDelete: the job has not ended, or is not known.
        """
        from preflight.client.delete import request_deletion
        from preflight.client.job_state import read_job

        record = read_job(self._redis, job_id, self._queue)
        request_deletion(self._queue, record, by)
        return record.job_id

    def deletion(self, job_id: str) -> Deletion | None:
        """Return the request to delete a job; None: there is none, or it was carried out."""
        from preflight.client.delete import read_deletion

        return read_deletion(self._redis, self._queue.name, job_id)

    def deleted_at(self, job_id: str) -> float | None:
        """Return when the job of this id was deleted, seconds since the epoch; None: it was not."""
        from preflight.client.delete import deleted_at

        return deleted_at(self._redis, job_id)

    def jobs(self, *, limit: int = DEFAULT_LIMIT, statuses: Collection[Status] = ()) -> list[JobState]:
        """Return jobs that RQ has: running ones first, then the others by their last update, newest first.

        A bounded number of jobs is read; docs/reference/wire.md says which are left out.

        Args:
            limit: maximum number of jobs.
            statuses: statuses to list; empty: all.
        """
        from preflight.client.job_list import list_jobs

        return list_jobs(self._queue, limit=limit, statuses=statuses)

    def ids(self, *, active: bool = False) -> list[str]:
        """Return ids of jobs that RQ has, the newest where there are many; `active`: of queued and running jobs."""
        from preflight.client.job_list import list_ids

        return list_ids(self._queue, active=active)


def _payload(job: TrainJob, job_id: str) -> dict[str, JsonValue]:
    return {**job.model_dump(mode="json", exclude_unset=True), "job_id": job_id}
