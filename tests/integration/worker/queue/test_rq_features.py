"""RQ's features with a real worker: each works as RQ's documentation says, or the job says that it does not."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from pydantic import JsonValue
from redis import Redis
from rq import Callback, Queue, Repeat, Retry, exceptions
from rq.command import send_stop_job_command
from rq.group import Group
from rq.job import Dependency, Job, JobStatus
from rq.serializers import JSONSerializer
from support.worker.services import ROOT, RunWorker, StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.queue.signing import Terms, signed_keywords
from preflight.redis import keys
from preflight.wire import FUNCTION, Progress
from worker.config.settings import Settings

BROKEN = {"type": "preflight.train.v1", "dataset": "no-such-data"}
"""Refused at once."""


def request(**fields: object) -> dict[str, JsonValue]:
    """Return a job that trains in about a second, as JSON."""
    return digits_job(**fields).model_dump(mode="json", exclude_unset=True)


def warnings(client: Client, job_id: str) -> list[str]:
    return [event.message for event in client.events(job_id, timeout=5) if event.type == "warning"]


def stored(raw: Redis, name: str) -> Job:
    return Job.fetch(name, connection=raw, serializer=JSONSerializer)


def is_over(raw: Redis, name: str) -> bool:
    return raw.hget(f"rq:job:{name}", "status") in (b"finished", b"failed")


@pytest.mark.slow
def test_a_scheduled_job_with_a_dependent_that_repeats(
    raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    """Each in its turn: the first when it is due, its dependent when it ends, that one again after a second."""
    queue.enqueue_in(timedelta(seconds=1), FUNCTION, args=(request(),), job_id="first")
    queue.enqueue(FUNCTION, args=(request(),), job_id="then", depends_on="first", repeat=Repeat(times=1, interval=1))
    assert {job.job_id: job.status for job in client.jobs()} == {"first": "queued", "then": "queued"}
    start_worker()
    for name in ("first", "then", "then-repeat-2"):
        wait_until(partial(is_over, raw, name), 90)
        result = stored(raw, name).return_value()
        assert result is not None
        assert (result["status"], client.status(name).status) == ("finished", "finished")
    began = [client.status(name).started_at or 0 for name in ("first", "then", "then-repeat-2")]
    assert began == sorted(began)
    assert not raw.exists("rq:job:then-repeat-3")


@pytest.mark.slow
def test_another_worker_schedules_when_one_is_killed(
    raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    """The killed one held the lock; its time to live is over within ten seconds."""
    lock = keys.rq_scheduler_lock("preflight")
    first = start_worker()
    wait_until(lambda: raw.get(lock) is not None)
    held = raw.get(lock)
    first.process.kill()
    start_worker()
    queue.enqueue_in(timedelta(seconds=0), FUNCTION, args=(BROKEN,), job_id="j")
    assert wait_for(client, "j").status == "failed"
    assert raw.get(lock) not in (held, None)


def test_failed_and_stopped_jobs_and_their_dependents(
    raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    """A failed one releases a dependent that allows it, a stopped one releases none."""
    queue.enqueue(FUNCTION, args=(BROKEN,), job_id="fails")
    queue.enqueue(FUNCTION, args=(BROKEN,), job_id="despite", depends_on=Dependency(["fails"], allow_failure=True))
    worker = start_worker()
    assert wait_for(client, "despite").reason == wait_for(client, "fails").reason
    queue.enqueue(FUNCTION, args=(request(epochs=10_000),), job_id="long")
    queue.enqueue(FUNCTION, args=(BROKEN,), job_id="never", depends_on="long")
    assert any(isinstance(event, Progress) for event in client.events("long", timeout=60))
    send_stop_job_command(raw, "long", serializer=JSONSerializer)
    assert wait_for(client, "long").status == "cancelled"
    wait_until(lambda: stored(raw, "long").is_stopped)
    worker.stop()
    assert stored(raw, "never").is_deferred
    assert client.cancel("never")
    assert (stored(raw, "never").is_canceled, client.status("never").status) == (True, "cancelled")


@pytest.mark.slow
def test_refused_options_are_said(raw: Redis, queue: Queue, client: Client, run_worker: RunWorker) -> None:
    """In an event each and in the job's meta; neither function runs in the worker."""
    others = Queue("mail", connection=raw, serializer=JSONSerializer)
    queue.enqueue(FUNCTION, args=(request(),), job_id="j", on_success=Callback("os.getcwd"), meta={"team": "a"},
                  on_failure=Callback("os.getcwd"), on_stopped=Callback("os.getcwd"))  # fmt: skip
    others.enqueue("os.getcwd", job_id="letter", depends_on="j")
    raw.hset("rq:job:j", "webhooks", '[{"url": "http://127.0.0.1:1/"}]')
    run_worker()
    said = warnings(client, "j")
    assert [message.split(",")[0] for message in said[:4]] == [
        "on_success is not called", "on_failure is not called", "on_stopped is not called", "webhooks are not sent",
    ]  # fmt: skip
    assert "PREFLIGHT_DEPENDENT_QUEUES" in said[4]
    meta = stored(raw, "j").meta
    assert meta["refused_options"] == ["on_success", "on_failure", "on_stopped", "webhooks", "dependents"]
    assert (meta["team"], meta["status"]) == ("a", "finished")
    assert stored(raw, "letter").is_deferred


@pytest.mark.slow
def test_dependents_on_a_named_queue_run_there(raw: Redis, queue: Queue, run_worker: RunWorker) -> None:
    others = Queue("mail", connection=raw, serializer=JSONSerializer)
    queue.enqueue(FUNCTION, args=(request(),), job_id="j")
    others.enqueue("os.getcwd", job_id="letter", depends_on="j")
    run_worker(environment={"PREFLIGHT_DEPENDENT_QUEUES": "mail"})
    assert others.get_job_ids() == ["letter"]


@pytest.mark.slow
def test_a_signed_job_is_not_repeated(raw: Redis, queue: Queue, client: Client, run_worker: RunWorker) -> None:
    key, job = "k" * 16, request(job_id="j")
    signed = signed_keywords(job, key, Terms(timeout=180))
    queue.enqueue(FUNCTION, args=(job,), kwargs=signed, job_id="j", job_timeout=180, repeat=Repeat(times=2))
    run_worker(environment={"PREFLIGHT_SIGNING_KEY": key})
    assert client.status("j").status == "finished"
    assert [message.split(",")[0] for message in warnings(client, "j")] == ["the job is not repeated"]
    assert not raw.exists("rq:job:j-repeat-2")


def test_a_retry_with_an_interval_is_scheduled(
    raw: Redis, queue: Queue, client: Client, settings: Settings, start_worker: StartWorker
) -> None:
    """A failure that may pass, such as one of the disk, is tried again later; the list shows the job meanwhile."""
    settings.artifact_dir.mkdir(parents=True)
    (settings.artifact_dir / "j").symlink_to(settings.state_dir)
    queue.enqueue(FUNCTION, args=(request(job_id="j"),), job_id="j", retry=Retry(max=2, interval=[1, 3600]))
    start_worker()
    wait_until(lambda: stored(raw, "j").retries_left == 0, 60)
    wait_until(lambda: stored(raw, "j").is_scheduled, 60)
    assert queue.scheduled_job_registry.get_scheduled_time("j").timestamp() > time.time() + 3000
    assert [job.job_id for job in client.jobs(statuses=["queued"])] == ["j"]


def enqueue_many(queue: Queue, names: Sequence[str]) -> None:
    queue.enqueue_many([Queue.prepare_data(FUNCTION, args=(BROKEN,), job_id=name) for name in names])


def test_ways_to_enqueue(raw: Redis, queue: Queue, client: Client, run_worker: RunWorker) -> None:
    """Many at once, at the front, with a description and a meta of its own, and one whose time to wait is over."""
    enqueue_many(queue, ["one", "two"])
    queue.enqueue(FUNCTION, args=(BROKEN,), job_id="urgent", at_front=True, description="tonight's", meta={"team": "a"})
    queue.enqueue(FUNCTION, args=(BROKEN,), job_id="late", ttl=1)
    raw.delete("rq:job:late")  # as Redis does when its time is over
    worker = run_worker()
    assert "job_not_found" in worker.output()
    ended = sorted(("one", "two", "urgent"), key=lambda name: client.status(name).updated_at or 0)
    assert ended == ["urgent", "one", "two"]
    job = stored(raw, "urgent")
    assert (job.description, job.meta["team"], client.status("late").status) == ("tonight's", "a", "unknown")


@pytest.mark.skipif(not hasattr(exceptions, "DuplicateJobError"), reason="RQ has `unique=True` since 2.8")
def test_an_id_is_unique(raw: Redis, queue: Queue, client: Client, run_worker: RunWorker) -> None:
    """RQ refuses it with `unique=True`; without, the finished job's result is returned, nothing is trained twice."""
    job = request(job_id="j")
    queue.enqueue(FUNCTION, args=(job,), job_id="j", unique=True)
    with pytest.raises(exceptions.DuplicateJobError):
        queue.enqueue(FUNCTION, args=(job,), job_id="j", unique=True)
    for _ in range(2):
        run_worker()
        assert (client.status("j").attempt, stored(raw, "j").get_status()) == (1, JobStatus.FINISHED)
        result = client.result("j")
        assert result is not None
        assert stored(raw, "j").return_value() == result.model_dump(mode="json", exclude_none=True)
        queue.enqueue(FUNCTION, args=(job,), job_id="j")


def test_a_group_lists_its_jobs(raw: Redis, queue: Queue, run_worker: RunWorker) -> None:
    group = Group.create(connection=raw, name="sweep")
    group.enqueue_many(queue, [Queue.prepare_data(FUNCTION, args=(BROKEN,), job_id=name) for name in ("a", "b")])
    run_worker()
    assert {job.id: job.get_status() for job in Group.fetch("sweep", connection=raw).get_jobs()} == {
        "a": "failed", "b": "failed",
    }  # fmt: skip


CRON = """
from rq import cron, serializers
from worker.jobs import train

serializers.DefaultSerializer.dumps = serializers.JSONSerializer.dumps
cron.register(train, queue_name="preflight", args=({job!r},), interval=1)
"""


def test_a_job_of_rqs_cron(client: Client, settings: Settings, start_worker: StartWorker, tmp_path: Path) -> None:
    """RQ's cron has no option for a serializer: its config file sets JSON."""
    pytest.importorskip("rq.cron")
    config = tmp_path / "cron_config.py"
    config.write_text(CRON.format(job=BROKEN))
    start_worker()
    command = [str(Path(sys.executable).with_name("rq")), "cron", str(config), "--url", settings.redis_url]
    cron = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}"})
    try:
        wait_until(lambda: any(job.status == "failed" for job in client.jobs()), 60)
    finally:
        cron.kill()
        cron.wait()
    assert {job.reason for job in client.jobs(statuses=["failed"])} == {"invalid_config"}
