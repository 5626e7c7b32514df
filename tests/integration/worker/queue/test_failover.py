"""Failovers behind one address, with the old primary alive as a replica: real workers, clients and a web service."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from rq.command import send_shutdown_command
from support.web.service import serving
from support.worker.services import StartWorker, Worker, digits_job, wait_for, wait_until
from support.worker.survival import FREQUENT, assert_nothing_duplicated, long_job, until_checkpoint

from preflight import Client
from preflight.redis import keys
from preflight.redis.replies import text
from preflight.wire import EVENT, AnyEvent
from tools.faults.event_checks import sequence_problems
from tools.faults.machines import Pair, RedisServer, free_port, new_pair
from worker.config.settings import Settings

PROMISED = 5.0
"""Seconds within which events of a running job arrive at the new primary."""
BOUND = 6 * PROMISED


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A primary and its replica, and the way to the primary, by TCP."""
    with new_pair(tmp_path / "pair", free_port()) as pair:
        yield pair


@pytest.fixture
def client(pair: Pair, settings: Settings) -> Client:
    """A client that lives through the failovers, as in a producer's process."""
    return Client(pair.proxy.url, queue=settings.queue)


@pytest.fixture
def worker(pair: Pair, start_worker: StartWorker) -> Worker:
    """A worker that lives through them."""
    return start_worker(environment={"PREFLIGHT_REDIS_URL": pair.proxy.url, **FREQUENT})


def outages(worker: Worker) -> list[str]:
    """Return the events of the lines about outages, in order."""
    records = [json.loads(line) for line in worker.output().splitlines()]
    return [record["event"] for record in records if record["event"] in ("redis_away", "redis_back")]


def events_of(server: RedisServer, job_id: str) -> int:
    """Return how many events of a job a server has."""
    return Redis.from_url(server.url).xlen(keys.events(job_id))


def seconds_to_next_event(pair: Pair, job_id: str, before: int | None = None) -> float:
    """Return after how many seconds the primary has more events than `before`; left out: than it has now."""
    began = time.monotonic()
    had = events_of(pair.primary, job_id) if before is None else before
    wait_until(lambda: events_of(pair.primary, job_id) > had, BOUND)
    return time.monotonic() - began


def test_a_worker_that_waits_takes_the_next_job_from_the_new_primary(
    pair: Pair, client: Client, worker: Worker
) -> None:
    """Its log has a line at the start and one at the end; RQ's commands reach it, too."""
    client.enqueue(digits_job(job_id="before"))
    assert wait_for(client, "before").status == "finished"
    (name,) = workers(pair)
    wait_until(lambda: Redis.from_url(pair.primary.url).hget(name, "state") == b"idle")
    pair.fail_over()
    client.enqueue(digits_job(job_id="after"))
    assert wait_for(client, "after").status == "finished"
    assert_nothing_duplicated(client, "after")
    wait_until(lambda: outages(worker) == ["redis_away", "redis_back"])
    assert "Redis is a read-only replica" in worker.output()
    assert workers(pair) == [name]
    send_shutdown_command(Redis.from_url(pair.primary.url), name.removeprefix("rq:worker:"))
    assert worker.wait() == 0


def workers(pair: Pair) -> list[str]:
    return [text(key) for key in Redis.from_url(pair.primary.url).smembers("rq:workers")]


def test_a_running_job_goes_on_at_the_new_primary(pair: Pair, client: Client, worker: Worker) -> None:
    """There and back; every event arrives, once and in order."""
    client.enqueue(long_job("job"))
    until_checkpoint(client, "job", 1)
    for _ in range(2):
        pair.fail_over()
        seconds = seconds_to_next_event(pair, "job")
        print(f"the next event came after {seconds:.1f} s")
    assert wait_for(client, "job").status == "finished"
    events = assert_nothing_duplicated(client, "job")
    assert {event.attempt for event in events} == {1}
    assert outages(worker) in (["redis_away", "redis_back"] * 2, ["redis_away", "redis_back"])
    assert worker.process.poll() is None


@pytest.mark.slow
def test_streams_go_on_from_the_new_primary(
    pair: Pair, settings: Settings, tmp_path: Path, client: Client, worker: Worker
) -> None:
    """Of a client and of the web service, which were made before the failovers; a job is cancelled through it."""
    own = settings.model_copy(update={"redis_url": pair.proxy.url})
    read: list[AnyEvent] = []
    with serving(own, tmp_path) as service:
        assert service.ask("GET", "/readyz").status == 200
        client.enqueue(long_job("job"))
        following = threading.Thread(target=lambda: read.extend(client.events("job", timeout=60)))
        following.start()
        with service.events("job") as stream:
            sent: list[AnyEvent] = []
            failovers: list[int] = []
            for _, kind, data in stream:
                if kind == "end":
                    break
                sent.append(EVENT.validate_json(data))
                if kind == "checkpoint_saved" and len(failovers) < 2:
                    pair.fail_over()
                    failovers.append(len(sent))
                    assert service.ask("GET", "/v1/jobs/job")["status"] == "running"
        assert len(failovers) == 2
        assert len(sent) > failovers[-1]
        following.join(60)
        assert sequence_problems(sent, whole=True) == sequence_problems(read, whole=True) == []
        assert [event.type for event in sent] == [event.type for event in read]
        assert read[-1].type == "training_done"
        assert service.enqueue("other").status == 201
        pair.fail_over()
        assert service.ask("POST", "/v1/jobs/other/cancel", {}).status == 202
        assert wait_for(client, "other").status == "cancelled"
        assert b'"other"' in service.ask("GET", "/v1/search").body
    assert worker.process.poll() is None
