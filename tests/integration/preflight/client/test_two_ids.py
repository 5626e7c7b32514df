"""Jobs that RQ has under another id than their own: a producer in RQ, a real worker, and every reader by either id."""

from datetime import timedelta
from pathlib import Path

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from support.web.service import serving
from support.worker.command_line import run
from support.worker.services import RunWorker, StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.redis import keys
from preflight.wire import FUNCTION, JobState
from worker.config.settings import Settings

OWN, RQS = "mine", "theirs"
BOTH = (OWN, RQS)
LONG = 10_000
"""Epochs of a job that is to be stopped."""


@pytest.fixture(autouse=True)
def commands(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", settings.redis_url)


def enqueue(queue: Queue, rq_id: str | None = RQS, job_id: str = OWN, *, timeout: int = 600, **fields: object) -> Job:
    payload = digits_job(job_id=job_id, **fields).model_dump(mode="json", exclude_unset=True)
    return queue.enqueue(FUNCTION, payload, job_id=rq_id, job_timeout=timeout, result_ttl=600)


def listed(client: Client) -> dict[str, JobState]:
    """Return the listed jobs by id; each is listed once."""
    found = client.jobs()
    states = {state.job_id: state for state in found}
    assert len(states) == len(found), found
    assert {*client.ids()} == {*states}
    return states


def types(client: Client, job_id: str) -> list[str]:
    return [event.type for event in client.events(job_id)]


def assert_one_job(client: Client, status: str, code: int) -> JobState:
    """Assert that both ids show the same job, which has ended, with its events and an exit code."""
    state = listed(client)[OWN]
    assert (state.status, state.rq_id) == (status, RQS)
    for job_id in BOTH:
        assert client.status(job_id) == state
        assert client.resolve(job_id) == OWN
        assert not client.is_active(job_id)
        assert not client.cancel(job_id)
        assert client.position(job_id) is None
        assert {event.job_id for event in client.events(job_id)} == {OWN}
        assert client.lifecycle_events(job_id) == client.lifecycle_events(OWN) != []
        assert run("watch", job_id).exit_code == code
        assert run("cancel", job_id).exit_code == 2
    assert set(listed(client)) == {OWN}
    return state


def test_a_waiting_job(client: Client, queue: Queue) -> None:
    """A list has it under RQ's id until a worker has taken it: it reads no payloads."""
    client.enqueue(digits_job(job_id="before"))
    enqueue(queue)
    assert set(listed(client)) == {"before", RQS}
    state = client.status(OWN)
    assert (state.job_id, state.rq_id, state.status, state.attempt) == (OWN, RQS, "queued", None)
    assert state.model == "small"  # of its payload
    assert client.status(RQS).job_id == RQS
    for job_id in BOTH:
        assert client.status(job_id).status == "queued"
        assert client.is_active(job_id)
        assert client.position(job_id) == 1
        assert client.result(job_id) is None
        assert list(client.events(job_id, timeout=0.2)) == []
    assert client.status("another").status == "unknown"
    assert run("watch", "another").exit_code == 2


def test_a_job_that_waits_for_its_time_or_another(client: Client, queue: Queue) -> None:
    """Found, and cancelled, by the id in its payload, too."""
    mine, other = ({"type": "preflight.train.v1", "dataset": "digits", "job_id": name} for name in (OWN, "other"))
    queue.enqueue_in(timedelta(hours=1), FUNCTION, args=(mine,), job_id=RQS)
    assert (client.status(OWN).rq_status, client.cancel(OWN)) == ("scheduled", True)
    assert queue.scheduled_job_registry.count == 0
    queue.enqueue(FUNCTION, args=(other,), job_id="deferred", depends_on=queue.enqueue(FUNCTION, job_id="first"))
    assert (client.status("other").rq_status, client.cancel("other")) == ("deferred", True)
    assert queue.deferred_job_registry.count == 0


@pytest.mark.parametrize("payload", ["", "x", "[]", '["f", null, [{}], {}]', '["f", null, [{"job_id": "."}], {}]'])
def test_a_search_passes_over_what_is_no_job(client: Client, queue: Queue, raw: Redis, payload: str) -> None:
    raw.hset("rq:job:odd", "data", payload)
    raw.rpush("rq:job:list", "x")
    raw.rpush(queue.key, "none", "list", "odd", b"\xff", "a:b")
    raw.hset(queue.intermediate_queue_key, "x", "y")
    enqueue(queue)
    assert client.status(OWN).rq_id == RQS
    assert client.status("f").status == "unknown"


@pytest.mark.slow
def test_a_job_is_followed_from_the_queue_on(
    client: Client, queue: Queue, settings: Settings, tmp_path: Path, start_worker: StartWorker
) -> None:
    """By RQ's id, which leads to its events once a worker has taken it."""
    enqueue(queue)
    with serving(settings, tmp_path) as service, service.events(RQS) as events:
        worker = start_worker("--burst")
        assert types(client, RQS)[-1] == "training_done", worker.output()
        sent = [kind for _, kind, _ in events]
        assert (sent[0], sent[-2:]) == ("job_started", ["training_done", "end"])


def test_a_finished_job(
    client: Client, queue: Queue, settings: Settings, tmp_path: Path, run_worker: RunWorker
) -> None:
    enqueue(queue)
    run_worker()
    state = assert_one_job(client, "finished", 0)
    assert state.test_accuracy is not None
    result = client.result(OWN)
    assert result is not None
    assert client.result(RQS) == result
    with serving(settings, tmp_path) as service:
        answers = [service.ask("GET", f"/v1/jobs/{job_id}") for job_id in BOTH]
        assert answers[0].json == answers[1].json
        assert (answers[0]["job_id"], answers[0]["rq_id"], answers[0]["status"]) == (OWN, RQS, "finished")
        assert [one["job_id"] for one in service.ask("GET", "/v1/jobs").objects] == [OWN]
        for job_id in BOTH:
            with service.events(job_id) as events:
                assert [kind for _, kind, _ in events][-2:] == ["training_done", "end"]
            assert service.ask("POST", f"/v1/jobs/{job_id}/cancel", {}).status == 409


def test_a_running_job_is_cancelled(
    client: Client, queue: Queue, settings: Settings, tmp_path: Path, start_worker: StartWorker
) -> None:
    enqueue(queue, epochs=LONG)
    start_worker()
    wait_for(client, RQS, "running")
    wait_until(lambda: client.status(RQS).job_id == OWN)  # from its first event on
    assert client.ids(active=True) == [OWN]
    with serving(settings, tmp_path) as service:
        workers = service.ask("GET", "/v1/overview")["workers"]
        assert isinstance(workers, list)
        assert [worker["job_id"] for worker in workers] == [OWN]
        answer = service.ask("POST", f"/v1/jobs/{RQS}/cancel", {})
        assert (answer.status, answer["job_id"]) == (202, OWN)
    assert wait_for(client, RQS).status == "cancelled"
    wait_until(lambda: not client.is_active(OWN))
    assert_one_job(client, "cancelled", 3)


def test_a_waiting_job_is_cancelled(client: Client, queue: Queue, run_worker: RunWorker) -> None:
    enqueue(queue)
    assert run("cancel", RQS).exit_code == 0
    assert queue.job_ids == []
    assert_one_job(client, "cancelled", 3)
    run_worker()
    assert client.status(RQS).attempt == 0


def test_a_worker_reads_a_cancellation_of_either_id(
    client: Client, queue: Queue, raw: Redis, run_worker: RunWorker
) -> None:
    """As a producer leaves it who may not change the queue, or who lost the race with the worker."""
    enqueue(queue, epochs=LONG)
    raw.hset(keys.cancel(RQS), "by", "producer")
    run_worker()
    assert_one_job(client, "cancelled", 3)
    assert not raw.exists(keys.cancel(OWN), keys.cancel(RQS))


def test_a_refused_job(client: Client, queue: Queue, run_worker: RunWorker) -> None:
    enqueue(queue, epochs=5)
    run_worker({"PREFLIGHT_MAX_EPOCHS": "1"})
    assert assert_one_job(client, "failed", 1).reason == "invalid_config"


@pytest.mark.slow
def test_a_job_of_several_rq_ids_is_listed_once(client: Client, queue: Queue, run_worker: RunWorker) -> None:
    """The second is taken after the end of the first, and gets its result."""
    enqueue(queue)
    enqueue(queue, "again")
    run_worker()
    assert set(listed(client)) == {OWN}
    assert client.status("again") == client.status(RQS)
    assert client.status(OWN).rq_id == RQS


@pytest.mark.slow
def test_an_id_whose_job_failed_leads_to_the_next_one(client: Client, queue: Queue, run_worker: RunWorker) -> None:
    enqueue(queue, epochs=LONG, timeout=1)
    run_worker()
    enqueue(queue, "again")
    run_worker()
    state = client.status(OWN)
    assert (state.status, state.rq_id) == ("finished", "again")
    assert set(listed(client)) == {OWN}


@pytest.mark.slow
def test_both_ids_outlive_a_loss_of_data(client: Client, queue: Queue, raw: Redis, start_worker: StartWorker) -> None:
    enqueue(queue, epochs=LONG)
    start_worker()
    wait_for(client, OWN, "running")
    raw.flushall()
    wait_until(lambda: client.status(RQS).job_id == OWN and client.status(RQS).rq_id == RQS)
    assert client.cancel(RQS)
    assert wait_for(client, RQS).status == "cancelled"


@pytest.mark.slow
def test_keys_of_other_types_are_passed_over(client: Client, queue: Queue, raw: Redis, run_worker: RunWorker) -> None:
    raw.rpush(keys.alias(RQS), "x")
    raw.rpush(keys.alias(OWN), "x")
    enqueue(queue)
    assert set(listed(client)) == {RQS}
    assert client.status(RQS).status == "queued"
    raw.delete(keys.alias(OWN))
    run_worker()
    assert_one_job(client, "finished", 0)
    raw.set(keys.alias(RQS), "no/id")
    assert client.status(RQS).job_id == RQS


# --- ids of others


@pytest.mark.slow
def test_a_payload_claims_the_id_of_a_finished_job(client: Client, queue: Queue, run_worker: RunWorker) -> None:
    client.enqueue(digits_job(job_id="victim"))
    run_worker()
    before = client.status("victim"), types(client, "victim")
    enqueue(queue, "x", "victim", seed=5)
    enqueue(queue, "y", "victim", epochs=5)
    run_worker({"PREFLIGHT_MAX_EPOCHS": "4"})
    assert (client.status("victim"), types(client, "victim")) == before
    for rq_id in ("x", "y"):
        assert (client.status(rq_id).job_id, client.status(rq_id).reason) == (rq_id, "invalid_config")
    assert set(listed(client)) == {"victim", "x", "y"}


@pytest.mark.slow
def test_a_payload_claims_the_id_of_a_waiting_job(client: Client, queue: Queue, run_worker: RunWorker) -> None:
    """It is taken first, and refused for the id."""
    for rq_id, epochs in (("victim", 1), ("x", 4)):
        payload = digits_job(job_id="victim", epochs=epochs).model_dump(mode="json", exclude_unset=True)
        queue.enqueue(FUNCTION, payload, job_id=rq_id, at_front=True, result_ttl=600)
    run_worker()
    assert (client.status("victim").status, client.status("victim").rq_id) == ("finished", None)
    assert (client.status("x").job_id, client.status("x").status, client.status("x").reason) == (
        "x", "failed", "invalid_config",
    )  # fmt: skip
    assert client.status("x").field == "job_id"


@pytest.mark.slow
def test_an_rq_id_is_the_id_of_another_job(client: Client, queue: Queue, run_worker: RunWorker) -> None:
    """The job of this id is meant, and both are listed."""
    enqueue(queue, "x", "victim")
    run_worker()
    before = client.status("victim"), types(client, "victim")
    enqueue(queue, "victim", "evil")
    run_worker()
    assert (client.status("victim"), types(client, "victim")) == before
    states = listed(client)
    assert {job_id: state.rq_id for job_id, state in states.items()} == {"victim": "x", "evil": "victim"}
    enqueue(queue, "victim", "victim", epochs=5)
    run_worker({"PREFLIGHT_MAX_EPOCHS": "4"})
    assert (client.status("victim"), types(client, "victim")) == before


@pytest.mark.slow
def test_a_payload_claims_the_rq_id_of_another_job(client: Client, queue: Queue, run_worker: RunWorker) -> None:
    enqueue(queue, "victim", "v")
    run_worker()
    before = client.status("victim")
    enqueue(queue, "x", "victim")
    run_worker()
    assert client.status("victim") == before == client.status("v")
    assert (client.status("x").job_id, client.status("x").field) == ("x", "job_id")
