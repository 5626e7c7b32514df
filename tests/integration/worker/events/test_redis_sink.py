"""The Redis sink: events arrive once and in order, whatever happens to Redis."""

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import pytest
from hypothesis import event, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import JsonValue
from redis import Redis
from redis.exceptions import RedisError, ResponseError
from structlog.testing import capture_logs
from support.redis.fences import claimed, die, done, event_ids, everything, progress, started, stream
from support.worker.services import RunWorker, digits_job, out_of_memory, read_only, wait_until, without_retries

from preflight import Client
from preflight.redis import keys
from preflight.redis.outage import Outage
from preflight.redis.retry import describe_error
from preflight.wire import TrainResult, flatten
from tools.faults.machines import RedisServer
from worker.broker.fencing import Fence, Superseded
from worker.broker.requeue import read_lease
from worker.config.settings import Settings
from worker.events import redis_sink
from worker.events.redis_sink import MAX_META_LENGTH, RedisSink
from worker.state.spool import Spool, SpooledEvent

RESULT = TrainResult(job_id="j", attempt=1, status="finished", test_accuracy=0.75)


@pytest.fixture(autouse=True)
def no_retry_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `publish_pending` is a try; no outage is left over from another test."""
    monkeypatch.setattr(redis_sink, "RETRY_INTERVAL", 0.0)
    monkeypatch.setattr(redis_sink, "REDIS", Outage(describe_error))


@dataclass
class Attempt:
    """A running attempt, and a connection that reads what it published."""

    url: str
    fence: Fence
    spool: Spool
    sink: RedisSink
    connection: Redis
    directory: Path

    @property
    def events(self) -> list[tuple[int, int]]:
        return event_ids(self.connection, keys.events("j"))

    def publish(self, *seqs: int) -> None:
        for seq in seqs:
            self.sink.emit(progress(seq, self.fence.attempt))

    def publish_all(self) -> None:
        wait_until(self.sink.publish_pending)

    def successor(self, meta: dict[str, JsonValue] | None = None) -> "Attempt":
        """Let this attempt die, and start the next one on the same disk."""
        die(self.connection)
        return attempt(self.url, self.directory, "b", meta=meta)


def attempt(
    url: str, directory: Path, owner: str = "a", *, least: int = 1, meta: dict[str, JsonValue] | None = None
) -> Attempt:
    """Start an attempt of job `j` with its spool in `directory`."""
    fence = Fence(without_retries(url), "j", owner, ttl=1000, request="r")
    assert fence.claim("j", least=least).status == "claimed"
    (directory / str(fence.attempt)).mkdir(parents=True, exist_ok=True)
    spool = Spool(directory, "j", fence.attempt)
    sink = RedisSink(fence, spool, kept=1000, meta=meta or {})
    return Attempt(url, fence, spool, sink, Redis.from_url(url, decode_responses=True), directory)


@pytest.fixture
def first(settings: Settings, tmp_path: Path) -> Attempt:
    """The first attempt, on the shared Redis."""
    return attempt(settings.redis_url, tmp_path / "j")


@pytest.fixture
def own(server: RedisServer, tmp_path: Path) -> Attempt:
    """The first attempt, on the test's own server."""
    return attempt(server.url, tmp_path / "j")


def ones(*seqs: int) -> list[tuple[int, int]]:
    return [(1, seq) for seq in seqs]


def test_a_redis_that_restarts_gets_every_event_once(own: Attempt, server: RedisServer) -> None:
    """In order, and `emit` does not block meanwhile."""
    own.publish(1, 2, 3)
    server.kill()
    own.publish(*range(4, 9))
    assert not own.sink.publish_pending()
    server.start()
    own.publish_all()
    own.publish(9)
    assert own.events == ones(*range(1, 10))
    assert own.connection.hget(keys.state("j"), "step") == "9"


def test_the_next_sink_publishes_the_spool_of_one_without_redis(first: Attempt, tmp_path: Path) -> None:
    nowhere = Fence(without_retries(f"unix://{tmp_path}/none"), "j", "a", ttl=1000, request="r")
    nowhere.attempt = first.fence.attempt
    sink = RedisSink(nowhere, first.spool, kept=1000, meta={})
    for seq in range(1, 6):
        sink.emit(progress(seq))
    assert not sink.publish_pending()
    assert first.events == []
    assert RedisSink(first.fence, first.spool, kept=1000, meta={}).publish_pending()
    assert first.events == ones(1, 2, 3, 4, 5)


@pytest.mark.parametrize("refusing", [out_of_memory, read_only])
def test_a_full_or_read_only_redis_is_retried(
    own: Attempt, refusing: Callable[[Redis], AbstractContextManager[None]]
) -> None:
    own.publish(1)
    with refusing(own.connection), capture_logs() as log:
        own.publish(2, 3)
        assert own.events == ones(1)
    assert [line["event"] for line in log] == ["redis_away"]
    assert own.sink.publish_pending()
    assert own.events == ones(1, 2, 3)


def test_redis_is_tried_once_per_interval(own: Attempt, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a training would wait for a timeout with each event."""
    monkeypatch.setattr(redis_sink, "RETRY_INTERVAL", 3600.0)
    server.kill()
    tried: list[RedisError] = []
    monkeypatch.setattr(Outage, "note_failure", lambda outage, error, to: tried.append(error))  # noqa: ARG005
    own.publish(*range(1, 21))
    assert len(tried) == 1


@pytest.mark.parametrize("key", [keys.fence, keys.events, keys.lifecycle, keys.state])
def test_a_key_of_another_type_is_not_retried(first: Attempt, key: Callable[[str], str]) -> None:
    """The error is permanent: it is raised, so that the job is quarantined."""
    first.connection.delete(key("j"))
    first.connection.sadd(key("j"), "x")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        first.sink.emit(done(1))


def test_a_superseded_attempt_publishes_nothing(first: Attempt, raw: Redis) -> None:
    first.publish(1, 2)
    die(raw)
    claimed(raw, "b")
    before = everything(raw)
    with pytest.raises(Superseded):
        first.sink.emit(done(3), RESULT)
    with pytest.raises(Superseded):
        first.sink.publish_pending()
    assert everything(raw) == before


@pytest.mark.usefixtures("settings")
def test_events_lost_by_a_full_disk_stay_in_place(redis_url: str, small_disk: tuple[Path, Callable[[], None]]) -> None:
    """After a data loss, events in memory are merged with those on disk."""
    first = attempt(redis_url, small_disk[0] / "j")
    with closing(first.spool):  # else the disk cannot be taken away
        first.publish(1)
        with out_of_memory(first.connection), capture_logs():  # standard output is a file that may not grow, too
            first.publish(*range(2, 61))
            small_disk[1]()
            first.publish(*range(61, 66))
        spooled = [one.event.seq for one in first.spool.replay()]
        assert set(range(61, 66)) < set(spooled) < set(range(1, 66))
        first.connection.flushall()
        assert first.sink.publish_pending()
        assert first.events == ones(*range(1, 66))


def test_a_long_backlog_renews_the_lease(own: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two batches; a single batch does not."""
    monkeypatch.setattr(redis_sink, "BATCH_SIZE", 2)
    own.publish(1, 2)
    assert read_lease(own.connection, "j") == "a 0"
    with out_of_memory(own.connection):
        own.publish(*range(3, 10))
    assert own.sink.publish_pending()
    assert own.events == ones(*range(1, 10))
    assert read_lease(own.connection, "j") == "a 3"


def test_an_emptied_redis_gets_all_events_again(first: Attempt) -> None:
    """Those of all attempts on this disk, in order, with result and meta; the state is of the newest."""
    first.sink.emit(started())
    first.publish(2, 3)
    second = first.successor()
    second.sink.emit(started(attempt=2))
    second.publish(2)
    before = stream(first.connection, keys.events("j"))
    first.connection.flushall()
    first.connection.hset("rq:job:j", "status", "started")
    with capture_logs() as log:
        second.sink.emit(done(3, attempt=2), RESULT)
    assert [line["event"] for line in log] == ["redis_data_loss_detected"]
    assert stream(first.connection, keys.events("j")) == [*before, flatten(done(3, attempt=2))]
    state = first.connection.hgetall(keys.state("j"))
    assert (state["attempt"], state["status"], state["step"]) == ("2", "finished", "2")
    assert first.connection.get(keys.result("j")) == RESULT.model_dump_json()
    assert json.loads(str(first.connection.hget("rq:job:j", "meta")))["status"] == "finished"
    second.publish(4)
    assert second.events == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (2, 4)]


def test_a_redis_restored_from_a_backup_gets_the_later_events(first: Attempt, raw: Redis) -> None:
    first.publish(1, 2)
    copy = everything(raw)
    first.publish(3, 4)
    raw.flushall()
    for key, value in copy.items():
        assert value is not None
        raw.restore(key, 0, value)
    first.publish(5)
    assert first.events == ones(1, 2, 3, 4, 5)


def test_a_lost_spool_does_not_stop_the_attempt(first: Attempt) -> None:
    """Redis and disk were emptied: later events are published."""
    first.publish(1, 2)
    shutil.rmtree(first.directory)
    first.connection.flushall()
    first.publish(3)
    assert first.events == ones(3)


def test_events_of_a_dead_attempt_are_published_first(first: Attempt) -> None:
    """The next attempt on its disk publishes them, result included, before its own."""
    first.sink.emit(started())
    with out_of_memory(first.connection):
        first.publish(2)
        first.sink.emit(done(3), RESULT)
    second = first.successor()
    assert first.events == ones(1)
    assert second.sink.publish_pending()
    assert first.connection.get(keys.result("j")) == RESULT.model_dump_json()
    second.sink.emit(started(attempt=2))
    assert second.events == [(1, 1), (1, 2), (1, 3), (2, 1)]


def test_a_worker_does_not_reuse_an_attempt_number_of_its_disk(
    settings: Settings, client: Client, connection: Redis, run_worker: RunWorker
) -> None:
    """Redis and worker died, and only the disk has the first attempt: the job ends with all events and a result."""
    directory = settings.state_dir / "jobs" / "j" / "1"
    directory.mkdir(parents=True)
    spool = Spool(directory.parent, "j", 1)
    spool.append(SpooledEvent(started()))
    for seq in range(2, 100):
        spool.append(SpooledEvent(progress(seq)))
    spool.close()
    client.enqueue(digits_job(job_id="j"))
    run_worker()
    state, result = client.status("j"), client.result("j")
    assert result is not None
    assert (state.status, state.attempt, result.attempt) == ("finished", 2, 2)
    events = event_ids(connection, keys.events("j"))
    assert events[:99] == ones(*range(1, 100))
    assert events[99:] == [(2, seq) for seq in range(1, len(events) - 98)]
    assert len(events) > 105


def test_rq_meta_has_the_same_values(first: Attempt) -> None:
    """Beside the producer's entries, and without values of an earlier attempt."""
    first.connection.hset("rq:job:j", "status", "started")
    earlier: dict[str, JsonValue] = {"reason": "artifact_error", "message": "the first failed", "status": "failed"}
    second = first.successor({"note": "mine", **earlier})
    second.sink.emit(started(attempt=2))
    second.publish(2)
    meta = json.loads(str(first.connection.hget("rq:job:j", "meta")))
    assert (meta["note"], meta["status"], meta["attempt"], meta["step"]) == ("mine", "running", 2, 2)
    assert not {"reason", "message", "seq", "ts", "type"} & set(meta)
    second.sink.emit(done(3, attempt=2), RESULT)
    meta = json.loads(str(first.connection.hget("rq:job:j", "meta")))
    assert (meta["note"], meta["status"], meta["test_accuracy"]) == ("mine", "finished", 0.75)


@pytest.mark.parametrize(("characters", "kept"), [(10_000, True), (200_000, False)])
def test_large_meta_is_dropped(first: Attempt, characters: int, kept: bool) -> None:
    """`meta` then has the values of the events only."""
    first.connection.hset("rq:job:j", "status", "started")
    with capture_logs() as logged:
        second = first.successor({"note": "x" * characters})
    second.sink.emit(started(attempt=2))
    second.publish(2)
    stored = str(first.connection.hget("rq:job:j", "meta"))
    assert len(stored) < MAX_META_LENGTH
    assert ("note" in json.loads(stored), json.loads(stored)["step"]) == (kept, 2)
    assert [line["event"] for line in logged] == ([] if kept else ["meta_dropped"])


def test_the_event_stream_is_capped_and_the_lifecycle_is_not(first: Attempt) -> None:
    """Redis trims whole nodes, so the length is approximate."""
    sink = RedisSink(first.fence, first.spool, kept=100, meta={})
    for seq in range(1, 601):
        sink.emit(progress(seq) if seq % 2 else started(seq=seq))
    assert 100 <= len(first.events) < 300
    assert first.events[-1] == (1, 600)
    assert len(event_ids(first.connection, keys.lifecycle("j"))) == 300


What = Literal["publish", "publish more", "publish_pending", "take over", "empty", "full", "room", "wake"]
STEPS = st.lists(st.sampled_from((*get_args(What), "publish", "take over", "wake")), max_size=25)


@hypothesis_settings(max_examples=150)
@given(steps=STEPS)
def test_every_event_arrives_once_and_in_order(
    redis_url: str, tmp_path_factory: pytest.TempPathFactory, steps: list[What]
) -> None:
    """Redis fills up and loses its data; attempts die, wake up and are superseded on the same disk.

    In the end Redis has every event of the newest attempt, and of each earlier one a prefix without gaps.
    """
    redis = Redis.from_url(redis_url, decode_responses=True)
    redis.flushall()
    directory = tmp_path_factory.mktemp("spool")
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setattr(redis_sink, "RETRY_INTERVAL", 0.0)
        patch.setattr(redis_sink, "MAX_PENDING", 6)
        patch.setattr(redis_sink, "BATCH_SIZE", 4)
        attempts = [attempt(redis_url, directory, "w1")]
        published = [0]
        try:
            for step in steps:
                newest = attempts[-1]
                match step:
                    case "publish" | "publish more":
                        for _ in range(1 if step == "publish" else 9):
                            published[-1] += 1
                            newest.sink.emit(progress(published[-1], newest.fence.attempt))
                    case "publish_pending":
                        newest.sink.publish_pending()
                    case "take over" if redis.config_get("maxmemory")["maxmemory"] == "0":
                        die(redis)
                        redis.hset(keys.fence("j"), "deaths", 0)
                        number = len(attempts) + 1
                        attempts.append(attempt(redis_url, directory, f"w{number}", least=number))
                        published.append(0)
                    case "empty":
                        redis.flushall()
                    case "full" | "room":
                        redis.config_set("maxmemory", int(step == "full"))
                    case "wake" if len(attempts) > 1:
                        event("resumed")
                        try:
                            published[-2] += 1
                            attempts[-2].sink.emit(progress(published[-2], attempts[-2].fence.attempt))
                        except Superseded:
                            event("superseded")
            redis.config_set("maxmemory", 0)
            newest = attempts[-1]
            published[-1] += 1
            newest.sink.emit(progress(published[-1], newest.fence.attempt))
            newest.publish_all()
        finally:
            redis.config_set("maxmemory", 0)
            for one in attempts:
                one.spool.close()
    assert [one.fence.attempt for one in attempts] == list(range(1, len(attempts) + 1))
    for number, count in enumerate(published, 1):
        seqs = [seq for of, seq in newest.events if of == number]
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) <= count
    assert len(seqs) == published[-1]
