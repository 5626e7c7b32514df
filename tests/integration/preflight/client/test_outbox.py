"""The outbox: jobs that Redis loses are enqueued again, once."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue, SecretStr
from redis import Redis
from rq import Queue
from support.worker.services import digits_job

from preflight import Client
from preflight.client import subscribe
from preflight.client.outbox import Outbox, OutboxEntry
from preflight.errors import InvalidConfig
from preflight.queue.untrusted_job import fetch_job
from preflight.redis import keys
from preflight.wire import MAX_JOB_BYTES, TrainJob, is_job_id, parse_job
from worker.admission.admit import admit
from worker.config.settings import Settings

PAYLOAD: dict[str, JsonValue] = {"type": "preflight.train.v1", "dataset": "digits", "model": "cnn"}
KEY = "a key of more than sixteen letters"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


@pytest.fixture
def outbox(directory: Path) -> Outbox:
    return Outbox(directory)


@pytest.fixture
def producer(settings: Settings, directory: Path) -> Client:
    return Client(settings.redis_url, queue=settings.queue, outbox=directory)


def saved_job(**fields: JsonValue) -> TrainJob:
    return TrainJob.model_validate({**PAYLOAD, **fields})


def test_a_job_is_saved_and_found(outbox: Outbox) -> None:
    """With its timeout, under its id, until it is deleted."""
    outbox.save("j", {**PAYLOAD, "job_id": "j", "epochs": 3}, 77)
    assert outbox.find("j") == OutboxEntry(saved_job(job_id="j", epochs=3), 77)
    assert list(outbox.ids()) == ["j"]
    outbox.delete("j")
    outbox.delete("j")
    assert outbox.find("j") is None
    assert list(outbox.ids()) == []


def test_a_missing_outbox_is_empty(producer: Client, outbox: Outbox, directory: Path) -> None:
    """Neither reading nor an enqueue without `ensure` makes the directory."""
    assert list(outbox.ids()) == []
    assert outbox.find("j") is None
    outbox.delete("j")
    assert producer.enqueue(digits_job(job_id="j")).created
    assert not directory.exists()


def test_a_job_saved_twice_is_replaced(outbox: Outbox, directory: Path) -> None:
    for epochs in (1, 2):
        outbox.save("j", {**PAYLOAD, "epochs": epochs}, 60 * epochs)
    assert outbox.find("j") == OutboxEntry(saved_job(epochs=2), 120)
    assert [path.name for path in directory.iterdir()] == ["j.json"]


DAMAGED: dict[str, bytes] = {
    "empty": b"", "torn": b'{"job": {"type": "preflight.train.v1", "data', "no-json": b"\xff\xfe", "null": b"null",
    "list": b"[]", "no-job": b'{"job_timeout": 60}', "no-timeout": json.dumps({"job": PAYLOAD}).encode(),
    "job-is-text": b'{"job": "x", "job_timeout": 60}', "empty-job": b'{"job": {}, "job_timeout": 60}',
    "timeout-is-text": json.dumps({"job": PAYLOAD, "job_timeout": "60"}).encode(),
    "unknown-field": json.dumps({"job": {**PAYLOAD, "x": 1}, "job_timeout": 60}).encode(),
    "other-version": json.dumps({"job": {**PAYLOAD, "type": "preflight.train.v2"}, "job_timeout": 60}).encode(),
    "out-of-bounds": json.dumps({"job": {**PAYLOAD, "epochs": 0}, "job_timeout": 60}).encode(),
    "deep": b"[" * 100_000, "large": b'{"job": "' + b"x" * (3 * MAX_JOB_BYTES) + b'"}',
    "digits": b'{"job": ' + b"9" * 5000 + b', "job_timeout": 60}',
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_ignored(producer: Client, outbox: Outbox, directory: Path, queue: Queue, name: str) -> None:
    """It is not deleted, and the valid file beside it is enqueued."""
    directory.mkdir()
    (directory / f"{name}.json").write_bytes(DAMAGED[name])
    outbox.save("z-good", {**PAYLOAD, "job_id": "z-good"}, 60)
    assert outbox.find(name) is None
    assert producer.resubmit() == ["z-good"]
    assert queue.get_job_ids() == ["z-good"]
    assert (directory / f"{name}.json").read_bytes() == DAMAGED[name]


@given(content=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@example(b'{"job": {}, "job_timeout": 1e999}')
def test_no_content_raises(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = tmp_path_factory.mktemp("outbox")
    (directory / "j.json").write_bytes(content)
    assert Outbox(directory).find("j") is None


def test_hostile_names_are_ignored(producer: Client, outbox: Outbox, directory: Path, queue: Queue) -> None:
    """Invalid ids are not listed; directories, links and pipes are not jobs, and opening a pipe does not block."""
    outbox.save("a.b", {**PAYLOAD, "job_id": "a.b"}, 60)
    record = (directory / "a.b.json").read_bytes()
    for name in (
        "..json", "...json", " .json", "a b.json", "é.json", "a\n.json", f"{'x' * 65}.json", ".json", "a:b.json",
        "j.json.part", ".a.b.json.x1", "j", "json", os.fsdecode(b"\xff.json"),
    ):  # fmt: skip
        (directory / name).write_bytes(record)
    (directory / "directory.json").mkdir()
    (directory / "loop.json").symlink_to("loop.json")
    (directory / "link.json").symlink_to(directory / "a.b.json")
    os.mkfifo(directory / "pipe.json")
    assert list(outbox.ids()) == ["a.b", "directory", "link", "loop", "pipe"]
    assert all(is_job_id(name) for name in outbox.ids())
    assert producer.resubmit() == ["a.b"]
    assert queue.get_job_ids() == ["a.b"]


def test_an_outbox_that_cannot_be_written_raises(settings: Settings, tmp_path: Path, queue: Queue) -> None:
    (tmp_path / "file").write_text("x")
    producer = Client(settings.redis_url, outbox=tmp_path / "file")
    with pytest.raises(OSError, match="File exists"):
        producer.enqueue(digits_job(job_id="j"), ensure=True)
    assert queue.get_job_ids() == []
    assert producer.enqueue(digits_job(job_id="j")).created


def test_a_lost_job_is_enqueued_again_once(producer: Client, outbox: Outbox, queue: Queue) -> None:
    """`resubmit` enqueues it unchanged under its id; a second call does nothing."""
    assert producer.enqueue(digits_job(job_id="a.b", epochs=3), job_timeout=77, ensure=True).created
    assert producer.resubmit() == []
    queue.connection.flushall()
    assert producer.resubmit() == ["a.b"]
    assert producer.resubmit() == []
    assert queue.get_job_ids() == ["a.b"]
    job = fetch_job("a.b", queue.connection)
    asked = parse_job(job.args[0])
    assert (job.timeout, asked.epochs, asked.job_id, job.options.retries_left) == (77, 3, "a.b", 2)
    assert list(outbox.ids()) == ["a.b"]


def test_a_generated_id_is_saved(producer: Client, outbox: Outbox, queue: Queue) -> None:
    job_id = producer.enqueue(digits_job(), ensure=True).job_id
    queue.connection.flushall()
    assert producer.resubmit() == list(outbox.ids()) == [job_id]
    assert parse_job(fetch_job(job_id, queue.connection).args[0]).job_id == job_id


def test_a_duplicate_enqueue_keeps_the_job_in_the_outbox(producer: Client, outbox: Outbox) -> None:
    assert producer.enqueue(digits_job(job_id="j"), ensure=True).created
    assert not producer.enqueue(digits_job(job_id="j"), ensure=True).created
    assert list(outbox.ids()) == ["j"]


@pytest.mark.parametrize("status", ["finished", "failed", "cancelled"])
def test_ended_jobs_are_deleted(producer: Client, outbox: Outbox, queue: Queue, connection: Redis, status: str) -> None:
    """By the next `resubmit`, so that it is not trained again once its records expire."""
    producer.enqueue(digits_job(job_id="j"), ensure=True)
    connection.hset(keys.state("j"), "status", status)
    connection.hset("rq:job:j", "status", "canceled" if status == "cancelled" else status)
    assert producer.resubmit() == []
    assert list(outbox.ids()) == []
    queue.connection.flushall()
    assert producer.resubmit() == []
    assert queue.get_job_ids() == []


@pytest.mark.parametrize("status", ["queued", "running"])
def test_a_job_with_a_held_lease_is_not_lost(producer: Client, outbox: Outbox, connection: Redis, status: str) -> None:
    """Redis lost its data: a running attempt restores the records; after its end, only its state is left."""
    producer.enqueue(digits_job(job_id="j"), ensure=True)
    connection.flushall()
    connection.hset(keys.state("j"), "status", status)
    connection.set(keys.lease("j"), "owner 1")
    assert producer.resubmit() == []
    assert list(outbox.ids()) == ["j"]
    connection.delete(keys.lease("j"))
    assert producer.resubmit() == ["j"]
    assert producer.resubmit() == []


def test_concurrent_resubmits_enqueue_once(producer: Client, queue: Queue, directory: Path, settings: Settings) -> None:
    for number in range(5):
        producer.enqueue(digits_job(job_id=f"j{number}"), ensure=True)
    queue.connection.flushall()
    code = (
        "import sys; from pathlib import Path; from preflight import Client; "
        "print(*Client(sys.argv[1], outbox=Path(sys.argv[2])).resubmit())"
    )
    command = [sys.executable, "-P", "-c", code, settings.redis_url, str(directory)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate()[0].split() for process in processes]
    assert {process.returncode for process in processes} == {0}
    assert sorted(job_id for ids in said for job_id in ids) == [f"j{number}" for number in range(5)]
    assert sorted(queue.get_job_ids()) == [f"j{number}" for number in range(5)]


def test_a_subscriber_resubmits_a_lost_job(producer: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribe, "IDLE_SECONDS", 0.2)
    producer.enqueue(digits_job(job_id="j"), ensure=True)
    queue.connection.flushall()
    assert list(producer.events("j", timeout=1)) == []
    assert queue.get_job_ids() == ["j"]


def test_a_signed_job_is_signed_again(settings: Settings, directory: Path, queue: Queue) -> None:
    """With the client's key; neither key nor signature is in the outbox."""
    redis = queue.connection
    Client(settings.redis_url, signing_key=KEY, outbox=directory).enqueue(digits_job(job_id="j"), ensure=True)
    first = fetch_job("j", redis)
    assert KEY not in (directory / "j.json").read_text()
    assert str(first.kwargs["signature"]) not in (directory / "j.json").read_text()
    redis.flushall()
    time.sleep(1.1)  # signed_at is in whole seconds
    assert Client(settings.redis_url, signing_key=KEY, outbox=directory).resubmit() == ["j"]
    job = fetch_job("j", redis)
    assert job.args == first.args
    assert int(str(job.kwargs["signed_at"])) > int(str(first.kwargs["signed_at"]))
    assert admit(job, redis, Settings(signing_key=SecretStr(KEY))).job_id == "j"
    with pytest.raises(InvalidConfig, match="is not that of this job"):
        admit(job, redis, Settings(signing_key=SecretStr(KEY + "x")))
