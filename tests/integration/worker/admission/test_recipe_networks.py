"""Networks of recipes that a job of an earlier version names: refused in the queue, finished once they have begun."""

import pytest
from redis import Redis
from support.worker.services import RunWorker, StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.redis import keys
from worker.config.settings import Settings
from worker.state.paths import has_attempts

NAMED = {"model": "cnn-small-valid"}


def test_a_queued_job_is_refused_by_name(client: Client, raw: Redis, run_worker: RunWorker) -> None:
    """A fence of a wrong type is no beginning; a job with its recipe is trained, as 0.25.1 enqueued it."""
    for job_id in ("named", "fenced"):
        client.enqueue(digits_job(job_id=job_id, **NAMED))
    raw.set(keys.fence("fenced"), "a text")
    fields = {"type": "preflight.train.v1", "dataset": "digits", "recipe": "fast", "max_steps": 5, "calibrate": False}
    client.enqueue(type(digits_job()).model_validate({**fields, "job_id": "recipe"}))
    run_worker()
    refused = client.status("named")
    assert refused.status == client.status("fenced").status == "failed"
    assert "leave out model and set recipe to 'fast'" in str(refused)
    assert client.status("recipe").status == "finished"


@pytest.mark.slow
def test_a_job_that_has_begun_goes_on(client: Client, raw: Redis, start_worker: StartWorker) -> None:
    """Its worker is killed in training, and another one takes it from its checkpoint."""
    raw.hset(keys.fence("named"), "attempt", 1)  # by a worker of 0.25.1
    client.enqueue(digits_job(job_id="named", epochs=15, **NAMED))
    first = start_worker()
    wait_until(lambda: (client.status("named").epoch or 0) >= 2)
    first.process.kill()
    start_worker()
    assert wait_for(client, "named").status == "finished"
    kinds = [event.type for event in client.events("named", timeout=5)]
    assert "job_resumed" in kinds


@pytest.mark.slow
def test_a_checkpoint_on_this_disk_is_a_beginning(
    client: Client, settings: Settings, raw: Redis, start_worker: StartWorker, run_worker: RunWorker
) -> None:
    """Redis lost what it knew of the job."""
    raw.hset(keys.fence("named"), "attempt", 1)
    client.enqueue(digits_job(job_id="named", epochs=15, **NAMED))
    first = start_worker()
    wait_until(lambda: (client.status("named").epoch or 0) >= 2)
    first.process.kill()
    first.process.wait()
    raw.flushall()
    assert has_attempts(settings, "named")
    client.enqueue(digits_job(job_id="named", epochs=15, **NAMED))
    run_worker()
    assert client.status("named").status == "finished"
