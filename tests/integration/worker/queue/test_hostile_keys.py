"""Keys of a wrong type or content: those of one job harm that job only, and none ends a worker."""

import json
import os
import signal
import time
from collections.abc import Callable

import pytest
from pydantic import JsonValue
from redis import Redis
from rq import Queue
from services import StartWorker, digits_job, wait_until
from structlog.testing import capture_logs

from worker.broker import keys
from worker.broker.replies import text
from worker.client import Client
from worker.config.settings import Settings
from worker.queue import quarantine
from worker.queue.worker import PreflightWorker
from worker.wire import FUNCTION, TrainResult

LARGEST_STREAM_ID = "18446744073709551615-18446744073709551615"


def payload(**fields: JsonValue) -> dict[str, JsonValue]:
    """Return a job as producers without our client send it."""
    return {**digits_job().model_dump(mode="json", exclude_unset=True), **fields}


def events_of(client: Client, job_id: str) -> list[str]:
    return [event.type for event in client.lifecycle_events(job_id)]


# --- one hostile message each

Put = Callable[[Redis, str], object]

HARMLESS: tuple[Put, ...] = (
    lambda raw, bad: raw.set(keys.rq_executions(bad), "1"),
    lambda raw, bad: raw.set(keys.rq_results(bad), "1"),
    lambda raw, bad: raw.hset(keys.fence(bad), mapping={"attempt": "9" * 30, "deaths": "-5", "seq:1": "x"}),
    lambda raw, bad: raw.rpush(keys.state(bad), "1"),
)
FATAL: dict[str, Put] = {
    "fence-type": lambda raw, bad: raw.set(keys.fence(bad), "1"),
    "lease-type": lambda raw, bad: raw.rpush(keys.lease(bad), "1"),
    "result-type": lambda raw, bad: raw.rpush(keys.result(bad), "1"),
    "result-garbage": lambda raw, bad: raw.set(keys.result(bad), "{"),
    "plan-type": lambda raw, bad: raw.rpush(keys.plan(bad), "1"),
    "events-type": lambda raw, bad: raw.set(keys.events(bad), "1"),
    "events-last-id": lambda raw, bad: raw.xadd(keys.events(bad), {"type": "x"}, id=LARGEST_STREAM_ID),
    "lifecycle-last-id": lambda raw, bad: raw.xadd(keys.lifecycle(bad), {"type": "x"}, id=LARGEST_STREAM_ID),
}


def test_keys_of_one_job_harm_that_job_only(
    raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    """It is trained, with all harmless keys at once, or quarantined; the next job finishes, and the worker exits."""
    for put in HARMLESS:
        put(raw, "harmless")
    raw.hset(keys.fence("fence-attempt"), "attempt", "x")
    for name, put in FATAL.items():
        put(raw, name)
    for name in ("harmless", "fence-attempt", *FATAL):
        queue.enqueue(FUNCTION, args=(payload(job_id=name, deterministic=name == "plan-type"),), job_id=name)
    client.enqueue(digits_job(job_id="good"))
    worker = start_worker("--burst")
    assert worker.wait() == 0, worker.output()
    assert client.status("good").status == "finished"
    assert raw.llen(queue.key) == raw.llen(queue.intermediate_queue_key) == 0
    assert raw.zcard(queue.started_job_registry.key) == 0
    entries = quarantine.entries(raw)
    assert entries.keys() == FATAL.keys()
    assert not any("please report it" in entry.reason for entry in entries.values())
    assert {raw.hget(f"rq:job:{name}", "status") for name in FATAL} == {b"failed"}
    assert {raw.hget(f"rq:job:{name}", "status") for name in ("harmless", "fence-attempt")} == {b"finished"}


SHARED = {
    "rq:queue:preflight": "list", "rq:queue:preflight:intermediate": "list", "rq:wip:preflight": "zset",
    "rq:finished:preflight": "zset", "rq:failed:preflight": "zset", "rq:workers": "set", "rq:workers:preflight": "set",
}  # fmt: skip
"""Those that a worker cannot do without; what is remembered and counted is not written where it cannot be."""


def test_shared_keys_of_a_wrong_type_are_renamed(
    raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    """At the start and later; new jobs are run."""
    for key in SHARED:
        raw.set(key, "at the start")
    worker = start_worker()
    wait_until(lambda: raw.type(queue.key) == b"none", 30)
    for number in range(2):
        queue.enqueue(FUNCTION, args=(payload(epochs=0),), job_id=f"refused-{number}")
        raw.rpush(queue.key, b"no id")
        client.enqueue(digits_job(job_id=f"good-{number}"))
        wait_until(lambda: raw.hget(f"rq:job:good-{number}", "status") == b"finished", 60)  # noqa: B023 - called now
        assert client.status(f"refused-{number}").status == "failed"
        if number == 0:
            for key in (*SHARED, keys.QUARANTINE, keys.TOTALS):
                raw.delete(key)
                raw.set(key, "later")
            wait_until(lambda: raw.type(queue.key) == b"none", 30)
    os.kill(worker.process.pid, signal.SIGTERM)
    assert worker.wait() == 0, worker.output()
    lines = [json.loads(line) for line in worker.output().splitlines() if "wrong_type_key_renamed" in line]
    assert {(line["key"], line["found"]) for line in lines} >= {(key, "string") for key in SHARED}
    assert all(raw.get(line["renamed_to"]) in (b"at the start", b"later") for line in lines)
    assert {key: text(raw.type(key)) for key in SHARED if raw.exists(key)}.items() <= SHARED.items()


def test_an_unknown_field_of_any_length_is_refused(
    raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    for number, length in enumerate((257, 2_001, 60_000)):
        queue.enqueue(FUNCTION, args=(payload(**{"x" * length: 1}),), job_id=f"bad-{number}")
        queue.enqueue(FUNCTION, args=(payload(augmentation={"y" * length: 1}),), job_id=f"deep-{number}")
    client.enqueue(digits_job(job_id="good"))
    worker = start_worker("--burst")
    assert worker.wait() == 0, worker.output()
    assert client.status("good").status == "finished"
    for name in ("bad", "deep"):
        for number in range(3):
            state = client.status(f"{name}-{number}")
            assert (state.status, state.reason) == ("failed", "invalid_config")
    assert raw.hlen(keys.QUARANTINE) == 0


# --- ends that could not be recorded


@pytest.mark.parametrize("ttl", [0, 60])
def test_a_requeued_job_ends_once_with_any_result_ttl(
    ttl: int, raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    queue.enqueue(FUNCTION, args=(payload(epochs=10_000),), job_id="j", result_ttl=ttl)
    worker = start_worker()
    assert any(event.type == "progress" for event in client.events("j", timeout=60))
    os.kill(worker.process.pid, signal.SIGTERM)
    assert worker.wait() == 0, worker.output()
    assert queue.get_job_ids() == ["j"]
    assert not raw.exists(keys.rq_executions("j"))
    client.cancel("j")
    queue.enqueue(FUNCTION, args=(payload(job_id="k"),), job_id="k", result_ttl=ttl)
    worker = start_worker("--burst")
    assert worker.wait() == 0, worker.output()
    assert events_of(client, "j")[-1] == "job_cancelled"
    assert events_of(client, "k").count("training_done") == 1
    assert raw.llen(queue.key) == raw.zcard(queue.started_job_registry.key) == 0


def test_a_job_fails_once_with_any_failure_ttl(
    raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    """Refused at admission, or failed while it ran."""
    for ttl in (0, 60, -1):
        queue.enqueue(FUNCTION, args=(payload(epochs=0),), job_id=f"refused{ttl}", failure_ttl=ttl)
        queue.enqueue(FUNCTION, args=(payload(batch_size=60_000),), job_id=f"fails{ttl}", failure_ttl=ttl)
    worker = start_worker("--burst")
    assert worker.wait() == 0, worker.output()
    for ttl in (0, 60, -1):
        for job_id in (f"refused{ttl}", f"fails{ttl}"):
            (event,) = [event for event in client.lifecycle_events(job_id) if event.type == "job_failed"]
            assert event.reason == "invalid_config"
            assert raw.exists(f"rq:job:{job_id}") == (ttl != 0)
    assert raw.llen(queue.key) == raw.zcard(queue.started_job_registry.key) == 0


def test_a_result_of_a_newer_version_is_recorded(
    raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    result = TrainResult(job_id="j", attempt=1, status="finished", test_accuracy=0.5)
    raw.set(keys.result("j"), json.dumps({**result.model_dump(mode="json"), "new": {"of": "0.99"}}))
    queue.enqueue(FUNCTION, args=(payload(job_id="j"),), job_id="j")
    worker = start_worker("--burst")
    assert worker.wait() == 0, worker.output()
    assert raw.hget("rq:job:j", "status") == b"finished"
    found = client.result("j")
    assert found is not None
    assert found.test_accuracy == 0.5


# --- one id, two requests


def test_an_id_of_a_finished_job_serves_one_request(
    raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    """Another request fails and changes nothing; the same one gets the result."""
    queue.enqueue(FUNCTION, args=(payload(job_id="j"),), job_id="first")
    queue.enqueue(FUNCTION, args=(payload(job_id="j", epochs=2),), job_id="other")
    queue.enqueue(FUNCTION, args=(payload(job_id="j"),), job_id="again")
    worker = start_worker("--burst")
    assert worker.wait() == 0, worker.output()
    before, state = events_of(client, "j"), client.status("j")
    assert (state.status, before.count("training_done"), before.count("job_failed")) == ("finished", 1, 0)
    failure = client.status("other")
    assert (failure.status, failure.reason, failure.field) == ("failed", "invalid_config", "job_id")
    assert [raw.hget(f"rq:job:{name}", "status") for name in ("first", "other", "again")] == [
        b"finished", b"failed", b"finished",
    ]  # fmt: skip
    raw.delete("rq:job:j")
    queue.enqueue(FUNCTION, args=(payload(job_id="j", epochs=2),), job_id="j")
    assert start_worker("--burst").wait() == 0
    assert raw.hget("rq:job:j", "status") == b"failed"
    assert events_of(client, "j") == before
    assert client.result("j") is not None


def test_a_waiting_job_is_cancelled_with_a_registry_of_a_wrong_type(raw: Redis, queue: Queue, client: Client) -> None:
    raw.set(queue.canceled_job_registry.key, "somebody's")
    queue.enqueue(FUNCTION, args=(payload(job_id="j"),), job_id="j")
    assert client.cancel("j")
    assert (queue.get_job_ids(), events_of(client, "j")) == ([], ["job_cancelled"])
    assert client.status("j").status == "cancelled"
    assert raw.hget("rq:job:j", "status") == b"canceled"
    assert raw.ttl("rq:job:j") > 0


def test_an_exception_of_a_chore_is_logged_and_the_next_job_is_taken(
    raw: Redis, queue: Queue, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue(FUNCTION, args=(payload(job_id="j"),), job_id="j")
    worker = PreflightWorker(queue, raw, settings)

    def look(dead_workers: frozenset[str] = frozenset()) -> None:
        raise KeyError(dead_workers)

    monkeypatch.setattr(worker._reaper, "check", look)
    monkeypatch.setattr(worker._cleaner, "step", look)
    monkeypatch.setattr(worker._janitor, "step", look)
    with capture_logs() as log:
        taken = worker._take(burst=True)
    assert taken is not None
    assert taken.job_id == "j"
    failed = [line["chore"] for line in log if line["event"] == "chore_failed"]
    assert failed == ["Reaper", "RegistryCleaner", "Janitor"]


@pytest.mark.parametrize("pause", [0.0, 2.5])
def test_a_redeploy_after_a_data_loss_of_redis_loses_no_job(
    pause: float, raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    """Before and after RQ's records are restored."""
    client.enqueue(digits_job(job_id="j", epochs=10_000))
    worker = start_worker()
    assert any(event.type == "checkpoint_saved" for event in client.events("j", timeout=60))
    raw.flushall()
    time.sleep(pause)
    assert raw.exists("rq:job:j") == (pause > 0)
    os.kill(worker.process.pid, signal.SIGTERM)
    assert worker.wait() == 0, worker.output()
    assert (queue.get_job_ids(), client.status("j").status) == (["j"], "queued")
    start_worker()
    assert any(event.type == "job_resumed" for event in client.events("j", timeout=60))
    assert client.cancel("j")
    wait_until(lambda: client.status("j").status == "cancelled")
