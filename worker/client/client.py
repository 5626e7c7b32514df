"""The client for other services: enqueue, status, events, cancel. Needs neither torch nor a worker's settings.

from worker.client import Client
from worker.wire import TrainJob

client = Client("redis://localhost:6379/0")
job_id = client.enqueue(TrainJob(type="preflight.train.v1", dataset="mnist", model="cnn")).job_id
for event in client.events(job_id):
    print(event)
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from pydantic import JsonValue, ValidationError

from worker.broker import keys
from worker.broker.replies import text, texts
from worker.client.outbox import Outbox
from worker.client.rq_ids import LIMIT, MOST_PAGES, SMALLEST_PAGE, pages, sources
from worker.events.state import ask_to_stop, publish
from worker.queue.admission.signing import signed_keywords
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
    read_result,
    unflatten,
)

if TYPE_CHECKING:
    from redis import Redis
    from rq import Queue

RETRIES: Final = 2
"""How often RQ runs a job again whose supervisor died."""
LOOK_EVERY: Final = 0.1
"""Seconds between two looks for new events."""
QUIET: Final = 5.0
"""Seconds without an event after which it is asked whether the job goes on at all; and those without an answer of
Redis's after which it counts as away."""
DEFAULT_OUTBOX: Final = "~/.local/share/preflight/outbox"
PAGE: Final = 1000
"""Most events, states of jobs, or ids of one source, read at once."""

ENQUEUE: Final = """
-- Write a job's hash and put its id at the end of the queue, unless there is a job of this id.
-- KEYS: job hash, queue   ARGV: job id, then the fields of the hash
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('RPUSH', KEYS[2], ARGV[1])
return 1
"""
"""As RQ does with `unique=True`, which it has since 2.8 only."""

TAKE_OUT: Final = """
-- Take a job out of the queue, canceled for RQ; a registry of another type does not keep it there.
-- KEYS: queue, job hash, canceled registry   ARGV: job id, ttl in s, now in s
-- Returns whether it was there (0/1).
local function is(key, kind)
  return redis.call('TYPE', key).ok == kind
end
if not is(KEYS[1], 'list') or redis.call('LREM', KEYS[1], 0, ARGV[1]) == 0 then
  return 0
end
if is(KEYS[2], 'hash') then
  redis.call('HSET', KEYS[2], 'status', 'canceled')
  redis.call('EXPIRE', KEYS[2], ARGV[2])
end
if is(KEYS[3], 'zset') or is(KEYS[3], 'none') then
  redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
end
return 1
"""

FROM_RQ: Final[dict[str, Status]] = {
    "created": "queued", "queued": "queued", "deferred": "queued", "scheduled": "queued",
    "started": "running", "finished": "finished", "failed": "failed", "stopped": "failed",
    "canceled": "cancelled",
}  # fmt: skip
"""RQ's word -> ours, for a job that no worker has spoken about yet."""
OURS: Final = tuple(JobState.model_fields)
"""Fields that are read of a job's state."""
RQS: Final = ("status", "enqueued_at")
"""Fields that are read of RQ's hash of a job."""
LAST_HEARD: Final = ("status", "updated_at")
"""Fields of a job's state that say whether it belongs into a list, and where."""
STATUSES: Final[dict[str, Status]] = {status: status for status in get_args(Status)}

Words = tuple[dict[str, str], dict[str, str]]
"""What the worker and what RQ say of a job."""
Heard = tuple[bool, float]
"""Whether a job runs, and when it was last heard of: the order of a list."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A job in the queue."""

    job_id: str
    created: bool
    """False: a job of this id was there already, and nothing was enqueued."""
    waiting: bool = False
    """Redis was away: the job waits in the outbox for `Client.resubmit`."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A moment in which nothing was heard of a job."""

    trouble: str | None = None
    """What is the matter with Redis, behind its name: `cannot be reached`; None: it answers, and has nothing new."""


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
        from redis.backoff import NoBackoff
        from redis.retry import Retry
        from rq import Queue
        from rq.serializers import JSONSerializer

        from worker.client.rq_job import AnyIdJob

        self._redis: Redis = Redis.from_url(redis_url)
        # Who follows a job tries again himself, and redis-py's own tries would leave him without a word for seconds.
        self._follower: Redis = Redis.from_url(redis_url, retry=Retry(NoBackoff(), 0), socket_timeout=QUIET)
        self._queue: Queue = Queue(queue, connection=self._redis, job_class=AnyIdJob, serializer=JSONSerializer)
        self._signing_key = signing_key
        self._single = False
        """Whether Redis is known to be one server and no cluster."""
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
            redis.exceptions.RedisError: Redis did not take it, or is a cluster; with `ensure` the handle tells that it
                cannot be reached.
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
        status = self.status(job_id).status
        if status in ("queued", "running") and not self._is_held(job_id):
            status = "unknown"  # Redis lost it, and only what was published of it since is left
        match status:
            case "unknown":
                payload = {**kept.job.model_dump(mode="json", exclude_unset=True), "job_id": job_id}
                return self._enqueue(job_id, payload, kept.job_timeout).created
            case "finished" | "failed" | "cancelled":
                self._outbox.forget(job_id)
        return False

    def _is_held(self, job_id: str) -> bool:
        """Whether RQ knows the job, or an attempt of it runs, which restores what RQ has to know."""
        return bool(self._redis.exists(self._queue.job_class.key_for(job_id), keys.lease(job_id)))

    def _enqueue(self, job_id: str, payload: dict[str, JsonValue], job_timeout: int) -> Handle:
        from redis.exceptions import ResponseError
        from rq import Retry
        from rq.utils import now

        from worker.broker.retry import spoiled

        self._refuse_cluster()
        signed: dict[str, JsonValue] = {}
        if self._signing_key is not None:
            signed = signed_keywords(
                payload, self._signing_key, timeout=job_timeout, result_ttl=STATE_TTL, failure_ttl=STATE_TTL,
                retries=RETRIES,
            )  # fmt: skip
        job = self._queue.create_job(
            FUNCTION, args=(payload,), kwargs=signed, job_id=job_id, timeout=job_timeout, result_ttl=STATE_TTL,
            failure_ttl=STATE_TTL, retry=Retry(max=RETRIES), description=job_id,
        )  # fmt: skip
        job.enqueued_at = now()
        try:
            self._redis.sadd(self._queue.redis_queues_keys, self._queue.key)
        except ResponseError as error:
            if not spoiled(error):  # else RQ's tools do without the name of this queue until a worker has put it right
                raise
        fields = [part for pair in job.to_dict().items() for part in pair]
        created = self._redis.register_script(ENQUEUE)(keys=[job.key, self._queue.key], args=[job_id, *fields])
        return Handle(job_id, created=created == 1)

    def _refuse_cluster(self) -> None:
        """Raise `redis.exceptions.ClusterError` for a cluster, which would take the job's hash and not its id."""
        from redis.exceptions import ClusterError, NoPermissionError

        from worker.broker.retry import CLUSTERED, clustered

        if self._single:
            return
        try:
            if clustered(self._redis.info("server")):
                raise ClusterError(f"Redis {CLUSTERED}")
        except NoPermissionError:  # this user may not ask
            pass
        self._single = True

    def status(self, job_id: str) -> JobState:
        """Return the latest of everything about a job; status `unknown` where Redis knows nothing of it.

        What others have put into the job's keys and cannot be read is passed over.

        Raises:
            redis.exceptions.NoPermissionError: this user may enqueue, but not look.
        """
        return _state(job_id, *self._words(self._redis, [job_id])[0])

    def _words(self, connection: Redis, ids: Sequence[str], own_fields: Sequence[str] = OURS) -> list[Words]:
        """Return what is said of each job, in a round trip for many of them."""
        from redis.exceptions import NoPermissionError

        found: list[Words] = []
        for first in range(0, len(ids), PAGE):
            pipe = connection.pipeline(transaction=False)
            for job_id in ids[first : first + PAGE]:
                pipe.hmget(keys.state(job_id), own_fields)
                pipe.hmget(self._queue.job_class.key_for(job_id), RQS)
            answers: list[object] = pipe.execute(raise_on_error=False)
            for answer in answers:
                if isinstance(answer, NoPermissionError):
                    raise answer
            found += [
                (_named(own_fields, own), _named(RQS, rqs))
                for own, rqs in zip(answers[::2], answers[1::2], strict=True)
            ]
        return found

    def result(self, job_id: str) -> TrainResult | None:
        """Return the result of a finished job, None for any other, and where what is stored cannot be read."""
        from redis.exceptions import ResponseError

        try:
            stored = self._redis.get(keys.result(job_id))
            return read_result(stored) if stored is not None else None
        except (ResponseError, ValidationError):  # somebody else's, or of a version that is not read here
            return None

    def events(self, job_id: str, *, after: str = "0", timeout: float | None = None) -> Iterator[AnyEvent]:
        """Yield a job's events as they come, until it has ended; where Redis is away, once it is back.

        Args:
            job_id: which job.
            after: id of the stream record to go on after; `0` begins at the oldest that is kept.
            timeout: seconds without any event after which the iteration ends; None waits for ever.
        """
        for said in self.follow(job_id, after=after, timeout=timeout):
            if not isinstance(said, Silence):
                yield said

    def follow(self, job_id: str, *, after: str = "0", timeout: float | None = None) -> Iterator[AnyEvent | Silence]:
        """Yield what `events` does, and several times a second that nothing was heard, so that a watcher can go on.

        No event comes twice, though a Redis that lost its data is told all of them again.

        Raises:
            redis.exceptions.RedisError: waiting would not help: the password is refused, or a key is somebody else's.
        """
        from redis.exceptions import ConnectionError, TimeoutError

        from worker.broker.retry import HOPELESS, condition

        heard, over = time.monotonic(), False
        last: dict[int, AnyEvent] = {}
        while timeout is None or time.monotonic() - heard < timeout:
            try:
                records = self._records(job_id, after)
                # Without a last event: killed, expired, or of a version that is not read here.
                quiet = over or time.monotonic() - heard > QUIET
                ended = quiet and not records and not self._resubmitted(job_id) and not self.goes_on(job_id)
                if ended:  # it may have said so between the two looks
                    records = self._records(job_id, after)
            except HOPELESS:
                raise
            except (ConnectionError, TimeoutError) as error:
                yield Silence(condition(error))
                time.sleep(LOOK_EVERY)
                continue
            for record_id, fields in records:
                after, heard = record_id, time.monotonic()
                event = _decode(fields)
                if event is not None and not _repeats(event, last.get(event.attempt)):
                    over, last[event.attempt] = event.type in LAST, event
                    yield event
            if ended:
                return
            if not records:
                yield Silence()
                time.sleep(LOOK_EVERY)

    def _records(self, job_id: str, after: str) -> list[tuple[str, dict[str, str]]]:
        """Return the stream records behind `after`."""
        records = self._follower.xrange(keys.events(job_id), min=f"({after}", count=PAGE) or []
        return [(text(record_id), texts(fields or {})) for record_id, fields in records]

    def turning_points(self, job_id: str) -> list[AnyEvent]:
        """Return what is kept of a job however long it is, oldest first."""
        records = self._follower.xrange(keys.lifecycle(job_id), count=PAGE) or []
        return [event for _, fields in records if (event := _decode(texts(fields or {}))) is not None]

    def goes_on(self, job_id: str) -> bool:
        """Whether more is to be expected of the job: it waits, runs, or is run again after a failure.

        RQ decides on a retry a moment after the job has said that it failed, so its word counts where it has one.
        """
        own, rqs = self._words(self._follower, [job_id])[0]
        return (_rq_status(rqs) or _state(job_id, own, rqs).status) in ("queued", "running")

    def position(self, job_id: str) -> int | None:
        """Return how many jobs stand before this one in the queue; None where it does not wait there."""
        from redis.exceptions import ResponseError

        try:
            found = self._follower.lpos(self._queue.key, job_id)
        except ResponseError:  # another type, or not for this user
            return None
        return found if isinstance(found, int) else None

    def cancel(self, job_id: str) -> bool:
        """Ask a job to stop: taken from the queue at once, or stopped within a step when it runs.

        Returns False when there is no such job, or it has ended.
        """
        from redis.exceptions import NoPermissionError

        status = self.status(job_id).status
        if status not in ("queued", "running"):
            return False
        try:
            ask_to_stop(self._redis, job_id, ttl=STATE_TTL)
            self._take_out(job_id)
        except NoPermissionError:
            # A producer may only ask, and the worker that takes the job clears it away.
            self._redis.hset(keys.cancel(job_id), "at", str(time.time()))
        return True

    def _take_out(self, job_id: str) -> None:
        """Cancel a job that still waits in the queue."""
        queue, script = self._queue, self._redis.register_script(TAKE_OUT)
        taken = script(
            keys=[queue.key, keys.rq_job(job_id), queue.canceled_job_registry.key],
            args=[job_id, STATE_TTL, int(time.time())],
        )  # fmt: skip
        if taken == 1:
            self._say_cancelled(job_id)
            self._redis.delete(keys.cancel(job_id))

    def jobs(self, *, limit: int = LIMIT, statuses: Collection[Status] = ()) -> list[JobState]:
        """Return the jobs that RQ still knows: those that run first, then the others, the last heard of first.

        However many there are, a bounded number of them is read; docs/wire.md says what that leaves out.

        Args:
            limit: how many at most.
            statuses: only jobs of these; empty: of any.
        """
        heard: dict[str, Heard] = {}
        size = max(limit, SMALLEST_PAGE)
        missing = dict.fromkeys(sources(self._queue, statuses), limit)
        for number in range(MOST_PAGES):
            found = pages(self._redis, [*missing], number, size)
            ids = dict.fromkeys(job_id for page in found for job_id in page.ids if job_id not in heard)
            heard |= self._heard([*ids], statuses)
            more = {
                source: most - sum(job_id in heard for job_id in page.ids)
                for (source, most), page in zip(missing.items(), found, strict=True) if page.entries == size
            }  # fmt: skip
            missing = {source: most for source, most in more.items() if most > 0}
            if not missing:
                break
        newest = nlargest(limit, heard, key=heard.__getitem__)
        words = zip(newest, self._words(self._redis, newest), strict=True)
        states = [_state(job_id, own, rqs) for job_id, (own, rqs) in words]
        return [state for state in states if _wanted(state.status, statuses)]

    def _heard(self, ids: Sequence[str], statuses: Collection[Status]) -> dict[str, Heard]:
        """Return when jobs were last heard of: those of `statuses` alone, and none that no longer exists."""
        words = zip(ids, self._words(self._redis, ids, LAST_HEARD), strict=True)
        found = {job_id: (_status(own, rqs), _last_heard(own, rqs)) for job_id, (own, rqs) in words}
        return {
            job_id: (status == "running", at) for job_id, (status, at) in found.items() if _wanted(status, statuses)
        }

    def ids(self, *, going_on: bool = False) -> list[str]:
        """Return ids of jobs that RQ still knows, or of those only that run or wait; of many, the newest."""
        asked = sources(self._queue, ("queued", "running") if going_on else ())
        return [*dict.fromkeys(job_id for page in pages(self._redis, asked, 0, PAGE) for job_id in page.ids)]

    def _say_cancelled(self, job_id: str) -> None:
        event = JobCancelled(seq=0, job_id=job_id, attempt=0, ts=time.time(), message="cancelled in the queue")
        publish(self._redis, event, ttl=STATE_TTL)


def _state(job_id: str, own: dict[str, str], rqs: dict[str, str]) -> JobState:
    """Return what is known of a job from its own state and from RQ's hash; `unknown` where that is nothing."""
    status = _status(own, rqs)
    try:
        return JobState.model_validate({"updated_at": _seconds(rqs), **own, "job_id": job_id, "status": status})
    except ValidationError:
        return JobState.model_validate({"job_id": job_id, "status": status})


def _status(own: dict[str, str], rqs: dict[str, str]) -> Status:
    rq_status: Status = _rq_status(rqs) or "unknown"
    status = STATUSES.get(own.get("status", rq_status), rq_status)
    # A supervisor that was killed cannot say so, and none knows that its job will be run again.
    outdated = (status, rq_status) in (("running", "failed"), ("running", "queued"), ("failed", "queued"))
    return rq_status if outdated else status


def _wanted(status: Status, statuses: Collection[Status]) -> bool:
    """Whether a list of `statuses` shows a job of this one."""
    return status != "unknown" and (not statuses or status in statuses)


def _last_heard(own: dict[str, str], rqs: dict[str, str]) -> float:
    """Return when a job was last heard of, as seconds since the epoch; 0 where nobody says."""
    try:
        at = float(own["updated_at"])
    except (KeyError, ValueError):
        return _seconds(rqs) or 0.0
    return at if math.isfinite(at) else 0.0


def _rq_status(rqs: dict[str, str]) -> Status | None:
    """Return RQ's word on a job; None where it has none."""
    return FROM_RQ.get(rqs.get("status", ""))


def _seconds(rqs: dict[str, str]) -> float | None:
    """Return when RQ took the job, as seconds since the epoch; None where it does not say."""
    try:
        return datetime.fromisoformat(rqs["enqueued_at"]).timestamp()
    except (KeyError, ValueError, OverflowError):
        return None


def _repeats(event: AnyEvent, last: AnyEvent | None) -> bool:
    """Whether an event was heard before the `last` one of its attempt: an emptied Redis is told all of them again."""
    return last is not None and 0 < event.seq <= last.seq and event.ts <= last.ts


def _decode(fields: dict[str, str]) -> AnyEvent | None:
    """Return the event in a stream record; None for one of a newer version or from somebody else."""
    try:
        return unflatten(fields)
    except ValidationError:
        return None


def _named(names: Sequence[str], values: object) -> dict[str, str]:
    """Return the fields of a hash that are set; none where there is no hash, something else, or no right to read it."""
    if not isinstance(values, list):
        return {}
    return {name: text(value) for name, value in zip(names, values, strict=True) if value is not None}
