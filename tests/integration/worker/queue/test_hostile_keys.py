"""Keys of a wrong type or content: those of one job harm that job only, and none ends a worker."""

import json
from collections.abc import Callable

import pytest
from pydantic import JsonValue
from redis import Redis
from rq import Queue
from structlog.testing import capture_logs
from support.worker.services import RunWorker, StartWorker, digits_job, wait_until

from preflight import Client
from preflight.redis import keys
from preflight.redis.replies import text
from preflight.wire import FUNCTION, TrainResult
from worker.admission import quarantine
from worker.config.settings import Settings
from worker.queue.worker import PreflightWorker

LARGEST_STREAM_ID = "18446744073709551615-18446744073709551615"


def enqueue(queue: Queue, rq_id: str, ttl: dict[str, int] | None = None, /, **fields: JsonValue) -> None:
    """Enqueue a job as producers without our client do."""
    job = {**digits_job().model_dump(mode="json", exclude_unset=True), **fields}
    queue.enqueue(FUNCTION, args=(job,), job_id=rq_id, **(ttl or {}))


def assert_empty(queue: Queue) -> None:
    """Assert that no job waits, is taken or runs."""
    assert not queue.connection.exists(queue.key, queue.intermediate_queue_key, queue.started_job_registry.key)


def events_of(client: Client, job_id: str) -> list[str]:
    return [event.type for event in client.lifecycle_events(job_id)]


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


def test_keys_of_one_job_harm_that_job_only(raw: Redis, queue: Queue, client: Client, run_worker: RunWorker) -> None:
    """It is trained, with all harmless keys at once, or quarantined; the next job finishes, and the worker exits."""
    for put in HARMLESS:
        put(raw, "harmless")
    raw.hset(keys.fence("fence-attempt"), "attempt", "x")
    for name, put in FATAL.items():
        put(raw, name)
    for name in ("harmless", "fence-attempt", *FATAL):
        enqueue(queue, name, job_id=name, deterministic=name == "plan-type")
    client.enqueue(digits_job(job_id="good"))
    run_worker()
    assert client.status("good").status == "finished"
    assert_empty(queue)
    entries = quarantine.entries(raw)
    assert entries.keys() == FATAL.keys()
    assert not any("please report it" in entry.reason for entry in entries.values())
    assert {raw.hget(f"rq:job:{name}", "status") for name in FATAL} == {b"failed"}
    assert {raw.hget(f"rq:job:{name}", "status") for name in ("harmless", "fence-attempt")} == {b"finished"}


SHARED = {
    "rq:queue:preflight": "list", "rq:queue:preflight:intermediate": "list", "rq:wip:preflight": "zset",
    "rq:finished:preflight": "zset", "rq:failed:preflight": "zset", "rq:workers": "set", "rq:workers:preflight": "set",
    "rq:scheduled:preflight": "zset", "rq:ready:preflight": "zset", "rq:rl-keys": "set",
    "preflight:ended:preflight": "hash",
}  # fmt: skip
"""Those that a worker cannot do without; what is remembered and counted is not written where it cannot be."""


def test_wrong_shared_keys_are_renamed(raw: Redis, queue: Queue, client: Client, start_worker: StartWorker) -> None:
    """At the start and later; new jobs are run."""
    for key in SHARED:
        raw.set(key, "at the start")
    worker = start_worker()
    wait_until(lambda: raw.type(queue.key) == b"none", 30)
    for number in range(2):
        enqueue(queue, f"refused-{number}", epochs=0)
        raw.rpush(queue.key, b"no id")
        client.enqueue(digits_job(job_id=f"good-{number}"))
        wait_until(lambda: raw.hget(f"rq:job:good-{number}", "status") == b"finished", 60)  # noqa: B023 - called now
        assert client.status(f"refused-{number}").status == "failed"
        if number == 0:
            for key in (*SHARED, keys.QUARANTINE, keys.TOTALS):
                raw.delete(key)
                raw.set(key, "later")
            wait_until(lambda: raw.type(queue.key) == b"none", 30)
    worker.stop()
    lines = [json.loads(line) for line in worker.output().splitlines() if "wrong_type_key_renamed" in line]
    assert {(line["key"], line["found"]) for line in lines} >= {(key, "string") for key in SHARED}
    assert all(raw.get(line["renamed_to"]) in (b"at the start", b"later") for line in lines)
    assert {key: text(raw.type(key)) for key in SHARED if raw.exists(key)}.items() <= SHARED.items()


@pytest.mark.slow
def test_a_long_unknown_field_is_refused(raw: Redis, queue: Queue, client: Client, run_worker: RunWorker) -> None:
    for number, length in enumerate((257, 2_001, 60_000)):
        enqueue(queue, f"bad-{number}", **{"x" * length: 1})
        enqueue(queue, f"deep-{number}", augmentation={"y" * length: 1})
    client.enqueue(digits_job(job_id="good"))
    run_worker()
    assert client.status("good").status == "finished"
    for job_id in (f"{name}-{number}" for name in ("bad", "deep") for number in range(3)):
        state = client.status(job_id)
        assert (state.status, state.reason) == ("failed", "invalid_config")
    assert raw.hlen(keys.QUARANTINE) == 0


def test_a_newer_versions_result_is_recorded(raw: Redis, queue: Queue, client: Client, run_worker: RunWorker) -> None:
    result = TrainResult(job_id="j", attempt=1, status="finished", test_accuracy=0.5)
    raw.set(keys.result("j"), json.dumps({**result.model_dump(mode="json"), "new": {"of": "0.99"}}))
    enqueue(queue, "j", job_id="j")
    run_worker()
    assert raw.hget("rq:job:j", "status") == b"finished"
    found = client.result("j")
    assert found is not None
    assert found.test_accuracy == 0.5


@pytest.mark.slow
def test_a_finished_jobs_id_serves_one_request(raw: Redis, queue: Queue, client: Client, run_worker: RunWorker) -> None:
    """Another request fails and changes nothing; the same one gets the result."""
    enqueue(queue, "first", job_id="j")
    enqueue(queue, "other", job_id="j", epochs=2)
    enqueue(queue, "again", job_id="j")
    run_worker()
    before, state = events_of(client, "j"), client.status("j")
    assert (state.status, before.count("training_done"), before.count("job_failed")) == ("finished", 1, 0)
    failure = client.status("other")
    assert (failure.status, failure.reason, failure.field) == ("failed", "invalid_config", "job_id")
    assert [raw.hget(f"rq:job:{name}", "status") for name in ("first", "other", "again")] == [
        b"finished", b"failed", b"finished",
    ]  # fmt: skip
    raw.delete("rq:job:j")
    enqueue(queue, "j", job_id="j", epochs=2)
    run_worker()
    assert raw.hget("rq:job:j", "status") == b"failed"
    assert events_of(client, "j") == before
    assert client.result("j") is not None


def test_a_waiting_job_is_cancelled_with_a_registry_of_a_wrong_type(raw: Redis, queue: Queue, client: Client) -> None:
    raw.set(queue.canceled_job_registry.key, "somebody's")
    enqueue(queue, "j", job_id="j")
    assert client.cancel("j")
    assert (queue.get_job_ids(), events_of(client, "j")) == ([], ["job_cancelled"])
    assert client.status("j").status == "cancelled"
    assert raw.hget("rq:job:j", "status") == b"canceled"
    assert raw.ttl("rq:job:j") > 0


def test_an_exception_of_a_chore_is_logged_and_the_next_job_is_taken(
    raw: Redis, queue: Queue, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(queue, "j", job_id="j")
    worker = PreflightWorker(queue, raw, settings)

    def look(*, own: str | None = None) -> None:
        raise KeyError(own)

    monkeypatch.setattr(worker._chores.reaper, "check", look)
    monkeypatch.setattr(worker._chores.cleaner, "step", look)
    monkeypatch.setattr(worker._chores.janitor, "step", look)
    with capture_logs() as log:
        taken = worker._take(burst=True)
    assert taken is not None
    assert taken.job_id == "j"
    failed = [line["part"] for line in log if line["event"] == "part_ended"]
    assert failed == ["Reaper", "RegistryCleaner", "Janitor"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("restored", [False, True])
def test_a_redeploy_after_a_data_loss_of_redis_loses_no_job(
    restored: bool, raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    """Before and after RQ's records are restored."""
    client.enqueue(digits_job(job_id="j", epochs=10_000))
    worker = start_worker()
    assert any(event.type == "checkpoint_saved" for event in client.events("j", timeout=60))
    raw.flushall()
    if restored:
        wait_until(lambda: raw.exists("rq:job:j") == 1)
    assert raw.exists("rq:job:j") == restored
    worker.stop()
    assert (queue.get_job_ids(), client.status("j").status) == (["j"], "queued")
    start_worker()
    assert any(event.type == "job_resumed" for event in client.events("j", timeout=60))
    assert client.cancel("j")
    wait_until(lambda: client.status("j").status == "cancelled")
