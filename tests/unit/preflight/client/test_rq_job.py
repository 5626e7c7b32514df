"""RQ jobs with ids that have a dot, which RQ refuses."""

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer
from support.worker.services import digits_job

from preflight import Client
from preflight.client.job_ids import AnyIdJob
from preflight.errors import InvalidConfig
from preflight.queue.untrusted_job import fetch_job
from preflight.redis import keys
from preflight.wire import parse_job

IDS = ["a.b", "...", ".hidden", "a.json", "-", "_", "A-9.z_", "0", "x" * 64, "." * 64]


@pytest.fixture
def queue(raw: Redis) -> Queue:
    return Queue("preflight", connection=raw, job_class=AnyIdJob, serializer=JSONSerializer)


def test_rq_refuses_a_dot(queue: Queue) -> None:
    with pytest.raises(ValueError, match="must only contain letters, numbers, underscores and dashes"):
        Job.create("worker.jobs.train", id="a.b", connection=queue.connection)
    assert AnyIdJob.create("worker.jobs.train", id="a.b", connection=queue.connection).id == "a.b"


@pytest.mark.parametrize("job_id", IDS)
def test_a_job_is_enqueued_fetched_and_cancelled(client: Client, queue: Queue, connection: Redis, job_id: str) -> None:
    enqueued = client.enqueue(digits_job(job_id=job_id))
    assert (enqueued.job_id, enqueued.created, enqueued.waiting) == (job_id, True, False)
    assert not client.enqueue(digits_job(job_id=job_id)).created
    assert queue.get_job_ids() == [queue.get_jobs()[0].id] == [job_id]
    job = fetch_job(job_id, queue.connection)
    assert (job.id, parse_job(job.args[0]).job_id) == (job_id, job_id)
    assert [state.job_id for state in client.jobs()] == [job_id]
    assert client.status(job_id).status == "queued"
    assert client.cancel(job_id)
    assert client.status(job_id).status == "cancelled"
    assert [event.type for event in client.events(job_id, timeout=5)] == ["job_cancelled"]
    assert [state.job_id for state in client.jobs()] == [job_id]
    assert queue.get_job_ids() == []
    assert connection.hget(f"rq:job:{job_id}", "status") == "canceled"
    assert not connection.exists(keys.cancel(job_id))
    assert not client.cancel(job_id)


@pytest.mark.parametrize("job_id", [".", "..", "a/b", "a b", "", "x" * 65, "é", "a\n", "a:b"])
def test_an_invalid_id_is_refused(job_id: str) -> None:
    """It would name another directory, or another key of RQ."""
    with pytest.raises((ValueError, InvalidConfig)):
        digits_job(job_id=job_id)


def test_a_generated_id_is_stable(queue: Queue) -> None:
    one, other = (AnyIdJob.create("worker.jobs.train", connection=queue.connection) for _ in range(2))
    assert one.id == one.id != other.id
    one.id = "mine"
    assert one.id == "mine"
