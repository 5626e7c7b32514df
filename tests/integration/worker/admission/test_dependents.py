"""Dependents on a real Redis: jobs of RQ that wait for ours are enqueued as RQ would."""

from collections.abc import Callable

import pytest
from redis import Redis
from rq import Queue
from rq.job import Dependency, Job
from rq.serializers import JSONSerializer
from structlog.testing import capture_logs

from preflight.queue.untrusted_job import UntrustedJob, fetch_job
from preflight.redis import keys
from preflight.wire import FUNCTION, TrainResult
from worker.admission.dependents import PAGE, Dependents
from worker.admission.quarantine import put
from worker.admission.refusal import refused_options
from worker.broker.rq_records import End, RqRecords, failed, finished, stopped
from worker.config.settings import Settings

JOB = {"type": "preflight.train.v1", "dataset": "digits", "model": "cnn"}
RESULT = TrainResult(job_id="parent", attempt=1, status="finished")
ENDS: dict[str, Callable[[UntrustedJob], End]] = {
    "finished": lambda job: finished(job, RESULT),
    "failed": lambda job: failed(job, "diverged: too fast"),
    "stopped": lambda job: stopped(job, "cancelled: on request"),
}


@pytest.fixture
def dependents(raw: Redis, queue: Queue, settings: Settings) -> Dependents:
    return Dependents(raw, queue, settings)


def enqueue(queue: Queue, name: str, *parents: str, tolerant: bool = False, front: bool = False) -> Job:
    depends_on = Dependency(list(parents), allow_failure=tolerant, enqueue_at_front=front) if parents else None
    return queue.enqueue(FUNCTION, args=(JOB,), job_id=name, depends_on=depends_on)


def end(queue: Queue, name: str, how: str = "finished") -> None:
    """Let a job of the queue end."""
    job = fetch_job(name, queue.connection)
    queue.connection.lrem(queue.key, 0, name)
    RqRecords(queue.connection, queue, "w", acceptance_ttl=100).end_job(job, name, ENDS[how](job), None, None)


@pytest.mark.parametrize(
    ("how", "released"), [("finished", ["child", "tolerant"]), ("failed", ["tolerant"]), ("stopped", [])]
)
def test_an_end_releases_its_dependents(queue: Queue, dependents: Dependents, how: str, released: list[str]) -> None:
    """After a failure only those that allow it, after a stop none: the rules of RQ."""
    enqueue(queue, "parent")
    enqueue(queue, "child", "parent")
    enqueue(queue, "tolerant", "parent", tolerant=True)
    assert sorted(queue.deferred_job_registry.get_job_ids()) == ["child", "tolerant"]
    end(queue, "parent", how)
    dependents.release("parent")
    assert sorted(queue.get_job_ids()) == released
    assert set(queue.deferred_job_registry.get_job_ids()) == {"child", "tolerant"} - set(released)


@pytest.mark.parametrize("ttl", [0, 1, -1])
def test_a_killed_worker_leaves_its_dependents_to_another(
    raw: Redis, queue: Queue, dependents: Dependents, ttl: int
) -> None:
    """Whatever time to live the records of the job have."""
    enqueue(queue, "parent")
    raw.hset("rq:job:parent", "result_ttl", ttl)
    enqueue(queue, "child", "parent")
    end(queue, "parent")
    assert dependents.due()
    dependents.step()
    assert queue.get_job_ids() == ["child"]
    assert not raw.exists(keys.ended("preflight"))
    assert not dependents.due()


def test_a_dependent_waits_for_all(raw: Redis, queue: Queue, dependents: Dependents) -> None:
    """One that was deleted counts as finished, as in RQ."""
    for name in ("one", "two", "deleted"):
        enqueue(queue, name)
    enqueue(queue, "child", "one", "two", "deleted", front=True)
    raw.delete("rq:job:deleted")
    end(queue, "one")
    dependents.step()
    assert queue.get_job_ids() == ["two", "deleted"]
    end(queue, "two")
    dependents.release("two")
    assert queue.get_job_ids() == ["child", "deleted"]


def test_jobs_that_depend_on_each_other_wait(raw: Redis, queue: Queue, dependents: Dependents) -> None:
    """In RQ, too; a cancelled one is not released either."""
    enqueue(queue, "parent")
    enqueue(queue, "one", "parent")
    raw.sadd("rq:job::one:dependencies", "two")
    enqueue(queue, "two", "one")
    enqueue(queue, "cancelled", "parent").cancel()
    end(queue, "parent")
    dependents.step()
    assert queue.get_job_ids() == []


def test_only_named_queues_get_dependents(raw: Redis, queue: Queue, settings: Settings) -> None:
    """The job that is waited for says which do not."""
    reports, mail = (Queue(name, connection=raw, serializer=JSONSerializer) for name in ("reports", "mail"))
    enqueue(queue, "parent")
    enqueue(reports, "report", "parent")
    enqueue(mail, "letter", "parent")
    named = settings.model_copy(update={"dependent_queues": "reports,other"})
    said = refused_options(raw, queue, fetch_job("parent", raw), named)["dependents"]
    assert "('mail')" in said
    assert "PREFLIGHT_DEPENDENT_QUEUES" in said
    end(queue, "parent")
    with capture_logs() as logs:
        Dependents(raw, queue, named).step()
    assert (reports.get_job_ids(), mail.get_job_ids()) == (["report"], [])
    assert reports.deferred_job_registry.get_job_ids() == []
    assert mail.deferred_job_registry.get_job_ids() == ["letter"]
    assert [(line["event"], line["message"]) for line in logs] == [("dependents_not_enqueued", said)]


def test_many_dependents_are_released_in_pages(raw: Redis, queue: Queue, dependents: Dependents) -> None:
    enqueue(queue, "parent")
    names = [f"child-{number}" for number in range(3 * PAGE)]
    for name in names:
        raw.hset(f"rq:job:{name}", mapping={"status": "deferred", "origin": "preflight"})
    raw.sadd("rq:job:parent:dependents", *names)
    end(queue, "parent")
    dependents.release("parent")
    assert sorted(queue.get_job_ids()) == sorted(names)


def test_hostile_dependents_harm_nothing(raw: Redis, queue: Queue, dependents: Dependents) -> None:
    """Ids that are none, hashes that are none, keys of a wrong type, a queue's name that is too long."""
    enqueue(queue, "parent")
    enqueue(queue, "child", "parent")
    raw.sadd("rq:job:parent:dependents", b"\xff\x00", "gone", "text", "long", "broken", "list")
    raw.set("rq:job:text", "x")
    raw.hset("rq:job:long", mapping={"status": "deferred", "origin": "q" * 257})
    raw.hset("rq:job:broken", mapping={"status": "deferred", "origin": "preflight"})
    raw.set("rq:job::broken:dependencies", "x")
    raw.hset("rq:job:list", mapping={"status": b"\xff", "origin": b"\xff"})
    end(queue, "parent")
    dependents.step()
    assert sorted(queue.get_job_ids()) == ["broken", "child"]
    enqueue(queue, "other")
    raw.set("rq:job:other:dependents", "x")
    end(queue, "other")
    dependents.step()


def test_a_job_in_quarantine_releases_those_that_allow_a_failure(queue: Queue, dependents: Dependents) -> None:
    enqueue(queue, "parent")
    enqueue(queue, "child", "parent")
    enqueue(queue, "tolerant", "parent", tolerant=True)
    put(queue.connection, queue, "parent", "it is poison")
    dependents.step()
    assert queue.get_job_ids() == ["tolerant"]


def test_ours_wait_for_jobs_of_others(raw: Redis, queue: Queue) -> None:
    """A worker of RQ enqueues them when its job ends."""
    from rq import SimpleWorker

    theirs = Queue("theirs", connection=raw, serializer=JSONSerializer)
    parent = theirs.enqueue("time.time", job_id="theirs")
    enqueue(queue, "ours", parent.id)
    assert queue.get_job_ids() == []
    SimpleWorker([theirs], connection=raw, serializer=JSONSerializer).work(burst=True, logging_level="WARNING")
    assert queue.get_job_ids() == ["ours"]
