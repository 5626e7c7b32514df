"""Jobs that a producer keeps until they have ended: whatever Redis loses, they are enqueued again, once."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.machines import RedisServer
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue, SecretStr
from redis import Redis
from rq import Queue
from services import digits_job

from training.errors import InvalidConfig
from worker.broker import keys
from worker.client import Client, client
from worker.client.outbox import Kept, Outbox
from worker.config.settings import Settings
from worker.queue.admission.admit import admit
from worker.queue.untrusted_job import load
from worker.wire import LARGEST_JOB, TrainJob, is_job_id, parse_job

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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis")
    yield server
    server.kill()


def kept(**fields: JsonValue) -> TrainJob:
    return TrainJob.model_validate({**PAYLOAD, **fields})


# --- the files


def test_a_job_is_kept_and_found(outbox: Outbox) -> None:
    """With its timeout, under its id, until it is forgotten."""
    outbox.keep("j", {**PAYLOAD, "job_id": "j", "epochs": 3}, 77)
    assert outbox.find("j") == Kept(kept(job_id="j", epochs=3), 77)
    assert list(outbox.ids()) == ["j"]
    outbox.forget("j")
    outbox.forget("j")
    assert outbox.find("j") is None
    assert list(outbox.ids()) == []


def test_an_outbox_that_is_not_there_is_empty(outbox: Outbox, directory: Path) -> None:
    """Nothing is made before something is kept."""
    assert list(outbox.ids()) == []
    assert outbox.find("j") is None
    outbox.forget("j")
    assert not directory.exists()


def test_a_job_that_is_kept_twice_is_kept_once(outbox: Outbox, directory: Path) -> None:
    """As it was the last time, and nothing half-written lies beside it."""
    for epochs in (1, 2):
        outbox.keep("j", {**PAYLOAD, "epochs": epochs}, 60 * epochs)
    assert outbox.find("j") == Kept(kept(epochs=2), 120)
    assert [path.name for path in directory.iterdir()] == ["j.json"]


DAMAGED: dict[str, bytes] = {
    "empty": b"", "torn": b'{"job": {"type": "preflight.train.v1", "data', "no-json": b"\xff\xfe", "null": b"null",
    "list": b"[]", "no-job": b'{"job_timeout": 60}', "no-timeout": json.dumps({"job": PAYLOAD}).encode(),
    "job-is-text": b'{"job": "x", "job_timeout": 60}', "empty-job": b'{"job": {}, "job_timeout": 60}',
    "timeout-is-text": json.dumps({"job": PAYLOAD, "job_timeout": "60"}).encode(),
    "unknown-field": json.dumps({"job": {**PAYLOAD, "x": 1}, "job_timeout": 60}).encode(),
    "other-version": json.dumps({"job": {**PAYLOAD, "type": "preflight.train.v2"}, "job_timeout": 60}).encode(),
    "out-of-bounds": json.dumps({"job": {**PAYLOAD, "epochs": 0}, "job_timeout": 60}).encode(),
    "deep": b"[" * 100_000, "large": b'{"job": "' + b"x" * (3 * LARGEST_JOB) + b'"}',
    "digits": b'{"job": ' + b"9" * 5000 + b', "job_timeout": 60}',
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_no_job(producer: Client, outbox: Outbox, directory: Path, queue: Queue, name: str) -> None:
    """It is passed over and stays for somebody to look at; the good one beside it is enqueued."""
    directory.mkdir()
    (directory / f"{name}.json").write_bytes(DAMAGED[name])
    outbox.keep("z-good", {**PAYLOAD, "job_id": "z-good"}, 60)
    assert outbox.find(name) is None
    assert producer.resubmit() == ["z-good"]
    assert queue.get_job_ids() == ["z-good"]
    assert (directory / f"{name}.json").read_bytes() == DAMAGED[name]


@given(content=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@example(b'{"job": {}, "job_timeout": 1e999}')
def test_no_content_raises(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Whatever is in a file, it is a job or none."""
    directory = tmp_path_factory.mktemp("outbox")
    (directory / "j.json").write_bytes(content)
    assert Outbox(directory).find("j") is None


def test_hostile_names_are_passed_over(producer: Client, outbox: Outbox, directory: Path, queue: Queue) -> None:
    """What cannot be a job's id is not even listed; what is no file is no job, and nobody waits for a pipe."""
    outbox.keep("a.b", {**PAYLOAD, "job_id": "a.b"}, 60)
    record = (directory / "a.b.json").read_bytes()
    for name in (
        "..json", "...json", " .json", "a b.json", "é.json", "a\n.json", f"{'x' * 65}.json", ".json", "a:b.json",
        "j.json.part", ".a.b.json.x1", "j", "json",
    ):  # fmt: skip
        (directory / name).write_bytes(record)
    (Path(os.fsdecode(os.fsencode(directory) + b"/\xff.json"))).write_bytes(record)
    (directory / "directory.json").mkdir()
    (directory / "loop.json").symlink_to("loop.json")
    (directory / "link.json").symlink_to(directory / "a.b.json")
    os.mkfifo(directory / "pipe.json")
    assert list(outbox.ids()) == ["a.b", "directory", "link", "loop", "pipe"]
    assert all(is_job_id(name) for name in outbox.ids())
    assert producer.resubmit() == ["a.b"]
    assert queue.get_job_ids() == ["a.b"]


def test_an_outbox_that_cannot_be_written_is_told(settings: Settings, tmp_path: Path, queue: Queue) -> None:
    """Before anything is enqueued: what was to be kept would not be."""
    (tmp_path / "file").write_text("x")
    producer = Client(settings.redis_url, outbox=tmp_path / "file")
    with pytest.raises(OSError, match="File exists"):
        producer.enqueue(digits_job(job_id="j"), ensure=True)
    assert queue.get_job_ids() == []
    assert producer.enqueue(digits_job(job_id="j")).created


# --- with a real Redis


def test_without_ensure_nothing_is_kept(producer: Client, directory: Path) -> None:
    """An outbox is made for those who ask for it."""
    assert producer.enqueue(digits_job(job_id="j")).created
    assert not directory.exists()


def test_a_job_is_enqueued_again_once(producer: Client, outbox: Outbox, queue: Queue) -> None:
    """Redis lost it: `resubmit` brings it back under its id, with all it asked for, and asked again does nothing."""
    assert producer.enqueue(digits_job(job_id="a.b", epochs=3), job_timeout=77, ensure=True).created
    assert producer.resubmit() == []
    queue.connection.flushall()
    assert producer.resubmit() == ["a.b"]
    assert producer.resubmit() == []
    assert queue.get_job_ids() == ["a.b"]
    job = load("a.b", queue.connection)
    asked = parse_job(job.args[0])
    assert (job.timeout, asked.epochs, asked.job_id, job.retries_left) == (77, 3, "a.b", 2)
    assert list(outbox.ids()) == ["a.b"]


def test_a_job_without_an_id_keeps_the_one_it_got(producer: Client, outbox: Outbox, queue: Queue) -> None:
    """So that its second enqueueing is the same job."""
    handle = producer.enqueue(digits_job(), ensure=True)
    queue.connection.flushall()
    assert producer.resubmit() == [handle.job_id]
    assert parse_job(load(handle.job_id, queue.connection).args[0]).job_id == handle.job_id
    assert list(outbox.ids()) == [handle.job_id]


def test_a_job_that_was_not_enqueued_again_is_kept(producer: Client, outbox: Outbox) -> None:
    """A second `enqueue` with `ensure` of an id that Redis has makes no second job."""
    assert producer.enqueue(digits_job(job_id="j"), ensure=True).created
    assert not producer.enqueue(digits_job(job_id="j"), ensure=True).created
    assert list(outbox.ids()) == ["j"]


@pytest.mark.parametrize("status", ["finished", "failed", "cancelled"])
def test_a_job_that_has_ended_is_dropped(
    producer: Client, outbox: Outbox, queue: Queue, connection: Redis, status: str
) -> None:
    """By the next `resubmit`, so that it is not trained again once Redis has forgotten it."""
    producer.enqueue(digits_job(job_id="j"), ensure=True)
    connection.hset(keys.state("j"), "status", status)
    connection.hset("rq:job:j", "status", "canceled" if status == "cancelled" else status)
    assert producer.resubmit() == []
    assert list(outbox.ids()) == []
    queue.connection.flushall()
    assert producer.resubmit() == []
    assert queue.get_job_ids() == []


@pytest.mark.parametrize("status", ["queued", "running"])
def test_a_job_that_goes_on_is_left_alone(producer: Client, outbox: Outbox, connection: Redis, status: str) -> None:
    """It is neither enqueued nor dropped; an attempt that came back to an emptied Redis restores its records."""
    producer.enqueue(digits_job(job_id="j"), ensure=True)
    connection.flushall()
    connection.hset(keys.state("j"), "status", status)
    connection.set(keys.lease("j"), "owner 1")
    assert producer.resubmit() == []
    assert list(outbox.ids()) == ["j"]


@pytest.mark.parametrize("status", ["queued", "running"])
def test_a_job_of_which_only_the_state_is_left_is_lost(producer: Client, connection: Redis, status: str) -> None:
    """Redis lost its data, the attempt published its last words, and its worker ended: RQ knows nothing of it."""
    producer.enqueue(digits_job(job_id="j"), ensure=True)
    connection.flushall()
    connection.hset(keys.state("j"), "status", status)
    assert producer.resubmit() == ["j"]
    assert producer.resubmit() == []


def test_many_resubmit_at_once(producer: Client, queue: Queue, directory: Path, settings: Settings) -> None:
    """Processes that share an outbox enqueue each job once, however many of them find it missing."""
    for number in range(5):
        producer.enqueue(digits_job(job_id=f"j{number}"), ensure=True)
    queue.connection.flushall()
    code = (
        "import sys; from pathlib import Path; from worker.client import Client; "
        "print(*Client(sys.argv[1], outbox=Path(sys.argv[2])).resubmit())"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", code, settings.redis_url, str(directory)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    said = [process.communicate()[0].split() for process in processes]
    assert {process.returncode for process in processes} == {0}
    assert sorted(job_id for ids in said for job_id in ids) == [f"j{number}" for number in range(5)]
    assert sorted(queue.get_job_ids()) == [f"j{number}" for number in range(5)]


def test_a_producer_without_redis_keeps_its_job(server: RedisServer, directory: Path) -> None:
    """It is told so, and the first to find Redis there enqueues it."""
    producer = Client(server.url, outbox=directory)
    handle = producer.enqueue(digits_job(job_id="j"), ensure=True)
    assert (handle.created, handle.waiting) == (False, True)
    server.start()
    assert producer.status("j").status == "unknown"
    assert Client(server.url, outbox=directory).resubmit() == ["j"]
    assert producer.status("j").status == "queued"


def test_a_watcher_brings_a_lost_job_back(producer: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever follows its events does not wait for ever for a job that Redis has lost."""
    monkeypatch.setattr(client, "QUIET", 0.2)
    producer.enqueue(digits_job(job_id="j"), ensure=True)
    queue.connection.flushall()
    assert list(producer.events("j", timeout=1)) == []
    assert queue.get_job_ids() == ["j"]


def test_a_signed_job_is_signed_again(settings: Settings, directory: Path, queue: Queue) -> None:
    """With the key of who brings it back; neither key nor signature lies in the outbox."""
    redis = queue.connection
    Client(settings.redis_url, signing_key=KEY, outbox=directory).enqueue(digits_job(job_id="j"), ensure=True)
    first = load("j", redis)
    assert KEY not in (directory / "j.json").read_text()
    assert str(first.kwargs["signature"]) not in (directory / "j.json").read_text()
    redis.flushall()
    time.sleep(1.1)  # signed_at is in whole seconds
    assert Client(settings.redis_url, signing_key=KEY, outbox=directory).resubmit() == ["j"]
    job = load("j", redis)
    assert job.args == first.args
    assert int(str(job.kwargs["signed_at"])) > int(str(first.kwargs["signed_at"]))
    assert admit(job, redis, Settings(signing_key=SecretStr(KEY))).job_id == "j"
    with pytest.raises(InvalidConfig, match="is not that of this job"):
        admit(job, redis, Settings(signing_key=SecretStr(KEY + "x")))
