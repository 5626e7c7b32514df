"""The scheduler on a real Redis, with jobs that RQ's own classes schedule."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis
from redis.exceptions import ConnectionError, ResponseError
from rq import Queue, Retry
from rq.job import Job, JobStatus
from rq.scheduler import RQScheduler
from rq.serializers import JSONSerializer
from support.worker.services import without_retries

from preflight import Client
from preflight.queue.untrusted_job import fetch_job
from preflight.redis import keys
from preflight.redis.replies import text
from preflight.wire import FUNCTION
from worker.queue.maintenance.scheduler import LOCK_SECONDS, PAGE, Scheduler

JOB = {"type": "preflight.train.v1", "dataset": "digits", "model": "cnn"}
PAST = timedelta(seconds=-5)
LOCK = keys.rq_scheduler_lock("preflight")


@pytest.fixture
def scheduler(raw: Redis, queue: Queue) -> Scheduler:
    return Scheduler(raw, queue, "me")


def schedule(queue: Queue, name: str, delay: timedelta = PAST, **options: object) -> Job:
    return queue.enqueue_in(delay, FUNCTION, args=(JOB,), job_id=name, **options)


def status(raw: Redis, name: str) -> JobStatus | None:
    return Job.fetch(name, connection=raw, serializer=JSONSerializer).get_status()


def test_jobs_that_are_due_are_enqueued(raw: Redis, queue: Queue, scheduler: Scheduler) -> None:
    """Those of the past, too, in the order of their times; one of them at the front; those of the future stay."""
    queue.enqueue(FUNCTION, args=(JOB,), job_id="waits")
    schedule(queue, "second")
    schedule(queue, "first", 2 * PAST)
    schedule(queue, "urgent", at_front=True)
    queue.enqueue_at(datetime(1971, 1, 1, tzinfo=UTC), FUNCTION, args=(JOB,), job_id="ancient")
    schedule(queue, "later", timedelta(hours=1))
    scheduler.step()
    assert queue.get_job_ids() == ["urgent", "waits", "ancient", "first", "second"]
    assert queue.scheduled_job_registry.get_job_ids() == ["later"]
    assert (status(raw, "first"), status(raw, "later")) == (JobStatus.QUEUED, JobStatus.SCHEDULED)
    assert Job.fetch("first", connection=raw, serializer=JSONSerializer).enqueued_at is not None


def test_a_queue_of_another_type_loses_no_job(raw: Redis, queue: Queue, scheduler: Scheduler) -> None:
    """The script fails before it has changed anything; once the key is renamed, the job is enqueued."""
    schedule(queue, "due")
    raw.xadd(queue.key, {"somebody": "else"})
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        scheduler.step()
    assert queue.scheduled_job_registry.get_job_ids() == ["due"]
    raw.rename(queue.key, "renamed")
    scheduler.step()
    assert queue.get_job_ids() == ["due"]


def test_a_thousand_jobs_of_one_second(raw: Redis, queue: Queue, scheduler: Scheduler) -> None:
    """More than a page follow at once."""
    for number in range(PAGE + 10):
        raw.hset(f"rq:job:{number}", "status", "scheduled")
    raw.zadd(queue.scheduled_job_registry.key, {str(number): 1.0 for number in range(PAGE + 10)})
    scheduler.step()
    assert (queue.count, scheduler.due()) == (PAGE, True)
    scheduler.step()
    assert (queue.count, scheduler.due()) == (PAGE + 10, False)


@pytest.mark.parametrize("over", ["canceled", "finished", "failed", "stopped", "started"])
def test_a_job_that_does_not_wait_is_not_enqueued(raw: Redis, queue: Queue, scheduler: Scheduler, over: str) -> None:
    """Nor is one without a hash; one that is in the queue is not there twice."""
    schedule(queue, "over")
    raw.hset("rq:job:over", "status", over)
    for entry in (b"gone", b"\xff\x00", b"twice"):
        raw.zadd(queue.scheduled_job_registry.key, {entry: 1.0})
    queue.enqueue(FUNCTION, args=(JOB,), job_id="twice")
    scheduler.step()
    assert queue.get_job_ids() == ["twice"]
    assert queue.scheduled_job_registry.count == 0


def test_a_hostile_job_stops_no_schedule(raw: Redis, queue: Queue, scheduler: Scheduler) -> None:
    """RQ's own scheduler ends at the first, again at each start."""
    for name in ("a", "z"):
        schedule(queue, name)
    raw.hset("rq:job:no-date", mapping={"status": "scheduled", "created_at": "yesterday", "data": b"\x80"})
    raw.set("rq:job:no-hash", "x")
    raw.hset("rq:job:limit", mapping={"status": "scheduled", "rate_limit_key": "x" * 1000})
    raw.set("rq:rl:broken:rate_limited", "x")
    raw.hset("rq:job:broken", mapping={"status": "scheduled", "rate_limit_key": "broken"})
    raw.zadd(queue.scheduled_job_registry.key, dict.fromkeys(("no-date", "no-hash", "limit", "broken"), 1.0))
    theirs = RQScheduler([queue], connection=raw, serializer=JSONSerializer)
    theirs.acquire_locks()
    with pytest.raises((ValueError, ResponseError)):
        theirs.enqueue_scheduled_jobs()
    theirs.release_locks()
    scheduler.step()
    assert sorted(text(name) for name in raw.lrange(queue.key, 0, -1)) == ["a", "broken", "limit", "no-date", "z"]


def test_one_scheduler_at_a_time(raw: Redis, queue: Queue, scheduler: Scheduler) -> None:
    """The next takes over when the lock is released, or when its holder has died."""
    other = Scheduler(raw, queue, "other")
    scheduler.step()
    schedule(queue, "j")
    other.step()
    assert (raw.get(LOCK), queue.count) == (b"me", 0)
    assert 0 < raw.pttl(LOCK) <= 1000 * LOCK_SECONDS
    other.stop()
    assert raw.get(LOCK) == b"me"
    scheduler.stop()
    other.step()
    assert (raw.get(LOCK), queue.count) == (b"other", 1)


def test_the_lock_is_rqs(raw: Redis, queue: Queue, scheduler: Scheduler) -> None:
    """A scheduler of RQ that died holds it for at most its time to live; a lock without one is overwritten."""
    schedule(queue, "j")
    raw.set(LOCK, "1234", ex=60)
    scheduler.step()
    assert queue.count == 0
    raw.set(LOCK, "1234")
    scheduler.step()
    assert (raw.get(LOCK), queue.count) == (b"me", 1)


def test_a_disabled_scheduler_is_never_due(raw: Redis, queue: Queue) -> None:
    assert not Scheduler(raw, queue, "me", enabled=False).due()


def test_jobs_that_rq_left_ready_are_enqueued(raw: Redis, queue: Queue, scheduler: Scheduler) -> None:
    """A worker of RQ 3 that dies between a job's end and its dependents leaves them there."""
    raw.hset("rq:job:j", "status", "ready_to_enqueue")
    raw.zadd(keys.rq_ready("preflight"), {"j": time.time()})
    scheduler.step()
    assert queue.get_job_ids() == ["j"]


def test_scheduled_jobs_are_listed_and_cancelled(client: Client, queue: Queue) -> None:
    schedule(queue, "later", timedelta(hours=1))
    assert [(job.job_id, job.status) for job in client.jobs(statuses=["queued"])] == [("later", "queued")]
    assert client.cancel("later")
    assert client.status("later").status == "cancelled"
    assert queue.scheduled_job_registry.count == 0
    assert queue.canceled_job_registry.get_job_ids() == ["later"]


def test_a_retry_waits_for_its_interval(raw: Redis, queue: Queue) -> None:
    """RQ counts the intervals from the end: two retries of three that are left wait for the second."""
    queue.enqueue(FUNCTION, args=(JOB,), job_id="j", retry=Retry(max=3, interval=[10, 20, 30]))
    assert fetch_job("j", raw).options.retry_pause == 10
    raw.hset("rq:job:j", "retries_left", 2)
    assert fetch_job("j", raw).options.retry_pause == 20
    raw.hset("rq:job:j", "retries_left", 0)
    assert fetch_job("j", raw).options.retry_pause == 0


def test_a_scheduler_waits_for_redis(queue: Queue) -> None:
    away = Scheduler(without_retries("redis://127.0.0.1:1/0"), queue, "me")
    with pytest.raises(ConnectionError):
        away.step()
    assert away.due()
