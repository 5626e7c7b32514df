"""Retry of failed and cancelled jobs: the client, the command and the route, with real workers."""

import json
import threading
from pathlib import Path

import pytest
from pydantic import SecretStr
from redis import Redis
from rq import Queue
from support.web.service import serving
from support.worker.command_line import run
from support.worker.services import RunWorker, StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.client.retry import CannotRetry
from preflight.redis import keys
from preflight.wire import STATE_TTL, JobResumed, JobStarted
from worker.config.settings import Settings, service_environment

KEY = "a-signing-key-of-enough-letters"


def test_a_cancelled_job_resumes_from_its_checkpoint(client: Client, start_worker: StartWorker, raw: Redis) -> None:
    """Under its id, in a new attempt; a second request to cancel the first run does not stop it."""
    client.enqueue(digits_job(job_id="again", epochs=15, onnx=False))
    start_worker(environment={"PREFLIGHT_CHECKPOINT_SECONDS": "0.2"})
    wait_until(lambda: "checkpoint_saved" in str(raw.xrange(keys.events("again"))), seconds=90)
    client.cancel("again")
    assert wait_for(client, "again").status == "cancelled"
    wait_until(lambda: not raw.exists(keys.lease("again")))
    raw.hset(keys.cancel("again"), "at", "late")
    assert client.retry("again") == "again"
    assert client.is_active("again")
    state = wait_for(client, "again", "finished")
    assert state.attempt == 2
    events = [*client.events("again")]
    assert [event.attempt for event in events if isinstance(event, JobStarted)] == [1, 2]
    resumed = [event for event in events if isinstance(event, JobResumed)]
    assert resumed
    assert resumed[0].epochs_done + resumed[0].steps_done > 0
    assert raw.ttl(keys.rq_job("again")) > 0
    assert raw.zrange("rq:finished:preflight", 0, -1) == [b"again"]
    assert raw.zcard("rq:failed:preflight") == 0


def test_a_failed_job_is_tried_again(client: Client, run_worker: RunWorker, raw: Redis) -> None:
    """It may succeed now; its state says that it waits, and not why it had failed."""
    client.enqueue(digits_job(job_id="failing", epochs=3))
    worker = run_worker({"PREFLIGHT_MAX_EPOCHS": "2"})
    failed = client.status("failing")
    assert (failed.status, failed.field) == ("failed", "epochs"), worker.output()
    assert raw.zcard("rq:failed:preflight") == 1
    client.retry("failing")
    queued = client.status("failing")
    assert (queued.status, queued.reason, queued.field, queued.message) == ("queued", None, None, None)
    assert (queued.updated_at or 0) > (failed.updated_at or 0)
    assert client.position("failing") == 0
    assert raw.ttl(keys.rq_job("failing")) == -1
    assert raw.hget(keys.rq_job("failing"), "retries_left") == b"2"
    assert raw.zcard("rq:failed:preflight") == 0
    run_worker()
    assert client.status("failing").status == "finished"


def test_a_job_cancelled_in_the_queue_waits_again(client: Client, raw: Redis, queue: Queue) -> None:
    client.enqueue(digits_job(job_id="waiting"))
    client.cancel("waiting")
    assert client.status("waiting").status == "cancelled"
    client.retry("waiting")
    assert client.status("waiting").status == "queued"
    assert raw.lrange(queue.key, 0, -1) == [b"waiting"]
    assert raw.zcard("rq:canceled:preflight") == 0


@pytest.mark.parametrize("status", ["queued", "started", "finished", "scheduled"])
def test_only_a_job_that_ended_badly_is_retried(client: Client, raw: Redis, queue: Queue, status: str) -> None:
    client.enqueue(digits_job(job_id="other"))
    raw.hset(keys.rq_job("other"), "status", status)
    with pytest.raises(CannotRetry, match="only a failed or cancelled job can be retried"):
        client.retry("other")
    assert raw.lrange(queue.key, 0, -1) == [b"other"]


def test_what_is_gone_or_no_training_is_refused(client: Client, raw: Redis, queue: Queue) -> None:
    with pytest.raises(CannotRetry, match="is unknown"):
        client.retry("nobody")
    client.enqueue(digits_job(job_id="gone"))
    client.cancel("gone")
    raw.delete(keys.rq_job("gone"))
    with pytest.raises(CannotRetry, match="not in Redis any more"):
        client.retry("gone")
    queue.enqueue("os.system", "true", job_id="foreign")
    client.cancel("foreign")
    with pytest.raises(CannotRetry, match="no training"):
        client.retry("foreign")
    assert raw.llen(queue.key) == 0


def test_ten_retries_at_once_are_one(client: Client, raw: Redis, queue: Queue) -> None:
    client.enqueue(digits_job(job_id="once"))
    client.cancel("once")
    refused = []

    def retry() -> None:
        try:
            client.retry("once")
        except CannotRetry as error:
            refused.append(error)

    threads = [threading.Thread(target=retry) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 9
    assert raw.lrange(queue.key, 0, -1) == [b"once"]


def test_a_job_under_another_rq_id_is_retried_by_either(client: Client, raw: Redis, queue: Queue) -> None:
    job = digits_job(job_id="mine").model_dump(mode="json", exclude_unset=True)
    queue.enqueue("worker.jobs.train", job, job_id="theirs", failure_ttl=STATE_TTL)
    client.cancel("theirs")
    assert client.status("mine").status == "cancelled"
    assert client.retry("theirs") == "mine"
    assert client.status("mine").status == "queued"
    assert raw.lrange(queue.key, 0, -1) == [b"theirs"]


@pytest.mark.slow
def test_a_signed_job_is_signed_anew(settings: Settings, run_worker: RunWorker) -> None:
    """Also within the second of its end, whose messages workers refuse."""
    client = Client(settings.redis_url, signing_key=KEY)
    environment = {"PREFLIGHT_SIGNING_KEY": KEY}
    client.enqueue(digits_job(job_id="signed", epochs=2))
    client.cancel("signed")
    client.retry("signed")
    run_worker({**environment, "PREFLIGHT_MAX_EPOCHS": "1"})
    assert client.status("signed").field == "epochs"
    client.retry("signed")
    run_worker(environment)
    assert client.status("signed").status == "finished", client.status("signed")


def test_the_command_retries(settings: Settings, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in service_environment(settings).items():
        monkeypatch.setenv(name, value)
    client.enqueue(digits_job(job_id="told"))
    refused = run("retry", "told")
    assert refused.exit_code == 2
    assert "job 'told' is queued; only a failed or cancelled job can be retried" in refused.stderr
    client.cancel("told")
    done = run("retry", "told")
    assert (done.exit_code, done.stdout) == (0, "told is queued again\n")
    assert client.status("told").status == "queued"


def test_the_routes_retry_and_cancel_many(settings: Settings, client: Client, tmp_path: Path) -> None:
    with serving(settings, tmp_path) as service:
        for job_id in ("one", "two"):
            assert service.enqueue(job_id).status == 201
        answer = service.ask("POST", "/v1/cancel", {"job_ids": ["one", "two", "none", "one"]})
        assert answer.status == 202
        assert answer["cancelled"] == [{"job_id": name, "status": "cancelled"} for name in ("one", "two")]
        assert [one["reason"] for one in json.loads(answer.body)["refused"]] == ["unknown_job"]
        again = service.ask("POST", "/v1/cancel", {"job_ids": ["one"]})
        assert [one["reason"] for one in json.loads(again.body)["refused"]] == ["already_ended"]
        assert service.ask("POST", "/v1/jobs/one/retry", {}).json == {"job_id": "one", "status": "queued"}
        refused = service.ask("POST", "/v1/jobs/one/retry", {})
        assert (refused.status, refused["reason"]) == (409, "not_retriable")
        assert service.ask("POST", "/v1/jobs/none/retry", {}).status == 404
        given: list[object] = [[], ["a/b"], "one", ["one"] * 201, None]
        for body in ({}, *({"job_ids": ids} for ids in given)):
            wrong = service.ask("POST", "/v1/cancel", body)
            assert (wrong.status, wrong["reason"]) == (422, "invalid_config"), wrong.body
    assert client.status("one").status == "queued"


def test_a_read_only_service_changes_nothing(settings: Settings, client: Client, tmp_path: Path) -> None:
    client.enqueue(digits_job(job_id="theirs"))
    private = settings.model_copy(update={"signing_key": SecretStr(KEY)})
    with serving(private, tmp_path, PREFLIGHT_WEB_READONLY="on") as service:
        posts = {
            "/v1/jobs": {"type": "preflight.train.v1", "dataset": "digits"}, "/v1/cancel": {"job_ids": ["theirs"]},
            "/v1/jobs/theirs/cancel": {}, "/v1/jobs/theirs/retry": {},
        }  # fmt: skip
        for path, body in posts.items():
            refused = service.ask("POST", path, body)
            assert (refused.status, refused["reason"]) == (403, "read_only")
        assert service.ask("GET", "/v1/overview")["read_only"] is True
        assert service.ask("GET", "/v1/jobs/theirs")["status"] == "queued"
    assert client.ids() == ["theirs"]
