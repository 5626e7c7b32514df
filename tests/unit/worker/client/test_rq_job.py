"""Jobs under every id of ours, in RQ's own books: RQ itself refuses a dot in one."""

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer
from services import digits_job

from training.errors import InvalidConfig
from worker.broker import keys
from worker.client import Client
from worker.client.rq_job import AnyIdJob
from worker.config.settings import Settings
from worker.queue.untrusted_job import load
from worker.wire import parse_job

IDS = ["a.b", "...", ".hidden", "a.json", "-", "_", "A-9.z_", "0", "x" * 64, "." * 64]
"""All of them may name a job."""


@pytest.fixture
def queue(settings: Settings) -> Queue:
    """A queue as a producer has it."""
    connection = Redis.from_url(settings.redis_url)
    return Queue(settings.queue, connection=connection, job_class=AnyIdJob, serializer=JSONSerializer)


def test_rq_refuses_a_dot(queue: Queue) -> None:
    """Which is why there is a job of our own."""
    with pytest.raises(ValueError, match="must only contain letters, numbers, underscores and dashes"):
        Job.create("worker.jobs.train", id="a.b", connection=queue.connection)
    assert AnyIdJob.create("worker.jobs.train", id="a.b", connection=queue.connection).id == "a.b"


@pytest.mark.parametrize("job_id", IDS)
def test_a_job_is_enqueued_watched_and_cancelled(client: Client, queue: Queue, connection: Redis, job_id: str) -> None:
    """From its producer to the end of its stream, under the id that was asked for."""
    handle = client.enqueue(digits_job(job_id=job_id))
    assert (handle.job_id, handle.created, handle.waiting) == (job_id, True, False)
    assert not client.enqueue(digits_job(job_id=job_id)).created
    assert queue.get_job_ids() == [job_id]
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


@pytest.mark.parametrize("job_id", IDS)
def test_a_worker_finds_it(client: Client, queue: Queue, job_id: str) -> None:
    """Under the same id, as a job that it may run."""
    client.enqueue(digits_job(job_id=job_id))
    assert queue.get_jobs()[0].id == job_id
    job = load(job_id, queue.connection)
    assert (job.id, parse_job(job.args[0]).job_id) == (job_id, job_id)


@pytest.mark.parametrize("job_id", [".", "..", "a/b", "a b", "", "x" * 65, "é", "a\n", "a:b"])
def test_what_is_no_id_is_not_enqueued(job_id: str) -> None:
    """It would name a directory that is not the job's own, or a key of RQ's."""
    with pytest.raises((ValueError, InvalidConfig)):
        digits_job(job_id=job_id)


def test_a_job_without_an_id_gets_one_for_good(queue: Queue) -> None:
    """Asked twice, it is the same, and two jobs differ."""
    one, other = (AnyIdJob.create("worker.jobs.train", connection=queue.connection) for _ in range(2))
    assert one.id == one.id != other.id
    one.id = "mine"
    assert one.id == "mine"
