"""Events on their way to Redis, while Redis comes and goes; and what the log says of them."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from faults.machines import RedisServer
from fences import claimed, die, done, everything, progress, said_in, started, stream
from hypothesis import event, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import JsonValue
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry
from services import StartWorker, digits_job, wait_until
from structlog.testing import capture_logs

from worker.broker import keys
from worker.broker.fencing import Fence, Superseded, lease_of
from worker.client import Client
from worker.config.settings import Settings
from worker.events import redis_sink as sinks
from worker.events.redis_sink import LogSink, RedisSink
from worker.events.spool import Spool, Spooled
from worker.wire import JobFailed, JobWarning, TrainResult, flatten

RESULT = TrainResult(job_id="j", attempt=1, status="finished", test_accuracy=0.75)
AWAY = 0.2
"""Seconds for which an answer is waited for."""


def connected(url: str) -> Redis:
    """Return a connection that waits and retries no more than a worker's does."""
    return Redis.from_url(url, socket_timeout=AWAY, socket_connect_timeout=AWAY, retry=Retry(NoBackoff(), 0))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pump is a try."""
    monkeypatch.setattr(sinks, "RETRY_EVERY", 0.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A redis-server of the test's own, which keeps its data when it is killed."""
    directory = tmp_path / "redis"
    directory.mkdir()
    server = RedisServer(directory)
    server.start()
    yield server
    server.go_on()
    server.kill()


@dataclass
class Told:
    """What an attempt tells, and where it is read."""

    fence: Fence
    spool: Spool
    sink: RedisSink
    connection: Redis
    directory: Path

    @property
    def events(self) -> list[tuple[int, int]]:
        return said_in(self.connection, keys.events("j"))

    def say(self, *seqs: int) -> None:
        for seq in seqs:
            self.sink.emit(progress(seq, self.fence.attempt))

    def until_all_is_said(self) -> None:
        wait_until(self.sink.pump)


def attempt(
    url: str, directory: Path, owner: str = "a", *, least: int = 1, meta: dict[str, JsonValue] | None = None
) -> Told:
    """Begin an attempt of job `j` that leaves its events in `directory`."""
    fence = Fence(connected(url), "j", owner, ttl=1000, request="r")
    assert fence.claim("j", least=least).word == "claimed"
    (directory / str(fence.attempt)).mkdir(parents=True, exist_ok=True)
    spool = Spool(directory, "j", fence.attempt)
    sink = RedisSink(fence, spool, "rq:job:j", kept=1000, meta=meta or {})
    return Told(fence, spool, sink, Redis.from_url(url, decode_responses=True), directory)


@pytest.fixture
def told(settings: Settings, tmp_path: Path) -> Iterator[Told]:
    """The first attempt, at the Redis that all tests share."""
    told = attempt(settings.redis_url, tmp_path / "j")
    yield told
    full(told.connection, False)


@pytest.fixture
def own(server: RedisServer, tmp_path: Path) -> Told:
    """The first attempt, at the test's own server."""
    return attempt(server.url, tmp_path / "j")


def ones(*seqs: int) -> list[tuple[int, int]]:
    return [(1, seq) for seq in seqs]


# --- Redis does not take them


def test_a_killed_redis_is_waited_for(own: Told, server: RedisServer) -> None:
    """Brought back with its data it gets every event once, in order; none is waited for meanwhile."""
    own.say(1, 2, 3)
    server.kill()
    own.say(*range(4, 9))
    assert not own.sink.pump()
    server.start()
    own.until_all_is_said()
    own.say(9)
    assert own.events == ones(*range(1, 10))
    assert own.connection.hget(keys.state("j"), "step") == "9"


def test_a_redis_that_was_never_there_stops_nothing(told: Told, tmp_path: Path) -> None:
    """No socket: every event is taken, kept on disk, and published by the next who can."""
    nowhere = Fence(connected(f"unix://{tmp_path}/none"), "j", "a", ttl=1000, request="r")
    nowhere.attempt = told.fence.attempt
    sink = RedisSink(nowhere, told.spool, "rq:job:j", kept=1000, meta={})
    for seq in range(1, 6):
        sink.emit(progress(seq))
    assert not sink.pump()
    assert told.events == []
    assert RedisSink(told.fence, told.spool, "rq:job:j", kept=1000, meta={}).pump()
    assert told.events == ones(1, 2, 3, 4, 5)


def test_a_redis_that_stands_still_gets_each_event_once(own: Told, server: RedisServer) -> None:
    """SIGSTOP: what it was sent before the answer timed out it does afterwards, and again when it is sent again."""
    own.say(1)
    server.halt()
    own.say(2, 3)
    assert not own.sink.pump()
    server.go_on()
    own.until_all_is_said()
    assert own.events == ones(1, 2, 3)


def full(connection: Redis, on: bool) -> None:
    connection.config_set("maxmemory", 1 if on else 0)


def replica(connection: Redis, on: bool) -> None:
    connection.execute_command("REPLICAOF", *(("127.0.0.1", "1") if on else ("NO", "ONE")))


@pytest.mark.parametrize("refuse", [full, replica])
def test_a_redis_that_refuses_is_waited_for(own: Told, refuse: Callable[[Redis, bool], None]) -> None:
    """Full (`OOM command not allowed`) or read-only: events wait as they do while it is away."""
    own.say(1)
    refuse(own.connection, True)
    with capture_logs() as log:
        own.say(2, 3)
    assert own.events == ones(1)
    assert {line["event"] for line in log} == {"redis_does_not_take_events"}
    refuse(own.connection, False)
    assert own.sink.pump()
    assert own.events == ones(1, 2, 3)


def test_redis_is_not_asked_at_every_event(own: Told, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is away, a training does not wait for an answer with each: one try, then a pause."""
    monkeypatch.setattr(sinks, "RETRY_EVERY", 3600.0)
    server.kill()
    with capture_logs() as log:
        own.say(*range(1, 21))
    assert [line["pending"] for line in log] == [1]


@pytest.mark.parametrize("key", [keys.fence, keys.events, keys.lifecycle, keys.state])
def test_a_key_of_another_type_is_not_waited_for(told: Told, key: Callable[[str], str]) -> None:
    """No waiting mends it: it is raised, so that the job can be put away."""
    told.connection.delete(key("j"))
    told.connection.sadd(key("j"), "x")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        told.sink.emit(done(1))


def test_an_attempt_that_was_taken_over_is_told_so(told: Told, redis_url: str) -> None:
    """By the next event, of which nothing reaches Redis, and by every pump after it."""
    told.say(1, 2)
    raw = Redis.from_url(redis_url)
    die(raw)
    claimed(raw, "b")
    before = everything(raw)
    with pytest.raises(Superseded):
        told.sink.emit(done(3), RESULT)
    with pytest.raises(Superseded):
        told.sink.pump()
    assert everything(raw) == before


# --- more of them than wait in memory


def test_a_long_absence_fills_no_memory(own: Told, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too much is read from the spool again, and arrives in order with what came after it."""
    monkeypatch.setattr(sinks, "MOST_PENDING", 5)
    monkeypatch.setattr(sinks, "BATCH", 3)
    own.say(1)
    server.kill()
    own.say(*range(2, 30))
    server.start()
    own.until_all_is_said()
    assert own.events == ones(*range(1, 30))


def test_what_does_not_wait_in_memory_is_in_the_spool_alone(
    own: Told, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shown by taking the spool away: only what came after the memory was full arrives, and nothing fails."""
    monkeypatch.setattr(sinks, "MOST_PENDING", 5)
    server.kill()
    own.say(*range(1, 9))
    shutil.rmtree(own.directory)
    server.start()
    own.until_all_is_said()
    assert own.events == ones(7, 8)


@pytest.mark.usefixtures("settings")
def test_an_event_that_the_disk_did_not_take_keeps_its_place(
    redis_url: str, small_disk: tuple[Path, Callable[[], None]]
) -> None:
    """Redis was emptied and the disk full for a while: what waited in memory goes between what lies on disk."""
    told = attempt(redis_url, small_disk[0] / "j")
    try:
        told.say(1)
        full(told.connection, True)
        with capture_logs():  # standard output is a file that may not grow, too
            told.say(*range(2, 61))
            small_disk[1]()
            told.say(*range(61, 66))
        spooled = [one.event.seq for one in told.spool.replay()]
        assert set(range(61, 66)) < set(spooled) < set(range(1, 66))
        told.connection.flushall()
        full(told.connection, False)
        assert told.sink.pump()
        assert told.events == ones(*range(1, 66))
    finally:
        full(told.connection, False)
        told.spool.close()  # else the disk cannot be taken away


def test_a_long_backlog_does_not_cost_the_lease(own: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two batches the attempt shows that it lives; with one there is no need to."""
    monkeypatch.setattr(sinks, "BATCH", 2)
    raw = Redis.from_url(f"unix://{own.connection.connection_pool.connection_kwargs['path']}")
    own.say(1, 2)
    assert lease_of(raw, "j") == "a 0"
    full(own.connection, True)
    own.say(*range(3, 10))
    full(own.connection, False)
    assert own.sink.pump()
    assert own.events == ones(*range(1, 10))
    assert lease_of(raw, "j") == "a 3"


# --- Redis lost them


def test_an_emptied_redis_is_told_everything_again(told: Told, redis_url: str) -> None:
    """All attempts that lie on this disk, in order, with result and meta; the state is that of the newest."""
    told.sink.emit(started())
    told.say(2, 3)
    die(Redis.from_url(redis_url))
    second = attempt(redis_url, told.directory, "b")
    second.sink.emit(started(attempt=2))
    second.say(2)
    before = stream(told.connection, keys.events("j"))
    told.connection.flushall()
    told.connection.hset("rq:job:j", "status", "started")
    with capture_logs() as log:
        second.sink.emit(done(3, attempt=2), RESULT)
    assert [line["event"] for line in log] == ["redis_lost_its_data"]
    assert stream(told.connection, keys.events("j")) == [*before, flatten(done(3, attempt=2))]
    state = told.connection.hgetall(keys.state("j"))
    assert (state["attempt"], state["status"], state["step"]) == ("2", "finished", "2")
    assert told.connection.get(keys.result("j")) == RESULT.model_dump_json()
    assert json.loads(str(told.connection.hget("rq:job:j", "meta")))["status"] == "finished"
    second.say(4)
    assert second.events == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (2, 4)]


def test_a_redis_restored_from_an_older_copy_is_told_the_rest(told: Told, redis_url: str) -> None:
    """What the copy has is not doubled."""
    raw = Redis.from_url(redis_url)
    told.say(1, 2)
    copy = everything(raw)
    told.say(3, 4)
    raw.flushall()
    for key, value in copy.items():
        assert value is not None
        raw.restore(key, 0, value)
    told.say(5)
    assert told.events == ones(1, 2, 3, 4, 5)


def test_a_lost_spool_stops_nothing(told: Told) -> None:
    """Redis was emptied, and the disk too: the attempt goes on with what it says from now on."""
    told.say(1, 2)
    shutil.rmtree(told.directory)
    told.connection.flushall()
    told.say(3)
    assert told.events == ones(3)


def test_what_a_dead_attempt_left_is_told_first(told: Told, redis_url: str) -> None:
    """The next attempt on its disk publishes what Redis had not taken, its result included, before its own."""
    told.sink.emit(started())
    full(told.connection, True)
    told.say(2)
    told.sink.emit(done(3), RESULT)
    full(told.connection, False)
    die(Redis.from_url(redis_url))
    second = attempt(redis_url, told.directory, "b")
    assert told.events == ones(1)
    assert second.sink.pump()
    assert told.connection.get(keys.result("j")) == RESULT.model_dump_json()
    second.sink.emit(started(attempt=2))
    assert second.events == [(1, 1), (1, 2), (1, 3), (2, 1)]


def test_a_redis_that_lost_the_number_of_an_attempt_does_not_hide_the_next(told: Told, redis_url: str) -> None:
    """Emptied while the worker was dead: beside what the first left on disk the next has a number of its own."""
    told.sink.emit(started())
    told.say(2, 3)
    told.connection.flushall()
    second = attempt(redis_url, told.directory, "b", least=2)
    second.sink.emit(started(attempt=2))
    second.sink.emit(done(2, attempt=2), RESULT)
    assert second.events == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    assert told.connection.exists(keys.result("j"))


def test_a_worker_does_not_use_the_number_of_a_forgotten_attempt(
    settings: Settings, client: Client, connection: Redis, start_worker: StartWorker
) -> None:
    """Redis and worker died together and only the disk remembers: a real job ends with all its events and a result."""
    directory = settings.state_dir / "jobs" / "j" / "1"
    directory.mkdir(parents=True)
    spool = Spool(directory.parent, "j", 1)
    spool.append(Spooled(started()))
    for seq in range(2, 100):
        spool.append(Spooled(progress(seq)))
    spool.close()
    client.enqueue(digits_job(job_id="j"))
    assert start_worker("--burst").wait() == 0
    state, result = client.status("j"), client.result("j")
    assert result is not None
    assert (state.status, state.attempt, result.attempt) == ("finished", 2, 2)
    events = said_in(connection, keys.events("j"))
    assert events[:99] == ones(*range(1, 100))
    assert events[99:] == [(2, seq) for seq in range(1, len(events) - 98)]
    assert len(events) > 105


# --- state, meta and streams


def test_a_new_attempt_wipes_the_state_of_the_old(told: Told, redis_url: str) -> None:
    """Figures of the attempt before are not shown as its own."""
    told.say(1)
    die(Redis.from_url(redis_url))
    second = attempt(redis_url, told.directory, "b")
    second.sink.emit(started(attempt=2))
    state = told.connection.hgetall(keys.state("j"))
    assert (state["attempt"], state["status"]) == ("2", "running")
    assert not {"loss", "step"} & set(state)


def test_rqs_meta_has_the_same_figures(redis_url: str, told: Told) -> None:
    """Beside the producer's own notes, and without those of an earlier attempt."""
    told.connection.hset("rq:job:j", "status", "started")
    die(Redis.from_url(redis_url))
    second = attempt(
        redis_url, told.directory, "b",
        meta={"note": "mine", "reason": "artifact_error", "message": "the first attempt failed", "status": "failed"},
    )  # fmt: skip
    second.sink.emit(started(attempt=2))
    second.say(2)
    meta = json.loads(str(told.connection.hget("rq:job:j", "meta")))
    assert (meta["note"], meta["status"], meta["attempt"], meta["step"]) == ("mine", "running", 2, 2)
    assert not {"reason", "message", "seq", "ts", "type"} & set(meta)
    second.sink.emit(done(3, attempt=2), RESULT)
    meta = json.loads(str(told.connection.hget("rq:job:j", "meta")))
    assert (meta["note"], meta["status"], meta["test_accuracy"]) == ("mine", "finished", 0.75)


@pytest.mark.parametrize(("characters", "kept"), [(10_000, True), (200_000, False)])
def test_large_notes_are_not_sent_with_every_event(told: Told, redis_url: str, characters: int, kept: bool) -> None:
    """Those of a producer that fit stay; with larger ones `meta` begins anew, and has the figures alone."""
    told.connection.hset("rq:job:j", "status", "started")
    die(Redis.from_url(redis_url))
    with capture_logs() as logged:
        second = attempt(redis_url, told.directory, "b", meta={"note": "x" * characters})
    second.sink.emit(started(attempt=2))
    second.say(2)
    stored = str(told.connection.hget("rq:job:j", "meta"))
    assert len(stored) < sinks.LARGEST_META
    assert ("note" in json.loads(stored), json.loads(stored)["step"]) == (kept, 2)
    assert [line["event"] for line in logged] == ([] if kept else ["meta_dropped"])


def test_the_event_stream_is_capped_and_the_lifecycle_is_not(told: Told) -> None:
    """Roughly: Redis trims whole nodes."""
    sink = RedisSink(told.fence, told.spool, "rq:job:j", kept=100, meta={})
    for seq in range(1, 601):
        sink.emit(progress(seq) if seq % 2 else started(seq=seq))
    assert 100 <= len(told.events) < 300
    assert told.events[-1] == (1, 600)
    assert len(said_in(told.connection, keys.lifecycle("j"))) == 300


# --- any order of it all

What = Literal["say", "say more", "pump", "take over", "empty", "full", "room", "wake"]
STEPS: st.SearchStrategy[list[What]] = st.lists(
    st.sampled_from(
        ("say", "say", "say more", "pump", "take over", "take over", "empty", "full", "room", "wake", "wake")
    ),
    max_size=25,
)


@hypothesis_settings(max_examples=150)
@given(steps=STEPS)
def test_every_event_arrives_once_and_in_order(
    redis_url: str, tmp_path_factory: pytest.TempPathFactory, steps: list[What]
) -> None:
    """Redis fills up and loses its data, attempts die, wake up and are followed by others on the same disk.

    In the end Redis has every event of the newest attempt, and of each before it the first ones without a gap.
    """
    redis = Redis.from_url(redis_url, decode_responses=True)
    redis.flushall()
    directory = tmp_path_factory.mktemp("spool")
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setattr(sinks, "RETRY_EVERY", 0.0)
        patch.setattr(sinks, "MOST_PENDING", 6)
        patch.setattr(sinks, "BATCH", 4)
        attempts = [attempt(redis_url, directory, "w1")]
        said = [0]
        try:
            for step in steps:
                newest = attempts[-1]
                match step:
                    case "say" | "say more":
                        for _ in range(1 if step == "say" else 9):
                            said[-1] += 1
                            newest.sink.emit(progress(said[-1], newest.fence.attempt))
                    case "pump":
                        newest.sink.pump()
                    case "take over" if redis.config_get("maxmemory")["maxmemory"] == "0":
                        die(redis)
                        redis.hset(keys.fence("j"), "deaths", 0)
                        number = len(attempts) + 1
                        attempts.append(attempt(redis_url, directory, f"w{number}", least=number))
                        said.append(0)
                    case "empty":
                        redis.flushall()
                    case "full" | "room":
                        full(redis, step == "full")
                    case "wake" if len(attempts) > 1:
                        event("woke")
                        try:
                            said[-2] += 1
                            attempts[-2].sink.emit(progress(said[-2], attempts[-2].fence.attempt))
                        except Superseded:
                            event("superseded")
            full(redis, False)
            newest = attempts[-1]
            said[-1] += 1
            newest.sink.emit(progress(said[-1], newest.fence.attempt))
            newest.until_all_is_said()
        finally:
            full(redis, False)
            for one in attempts:
                one.spool.close()
    assert [one.fence.attempt for one in attempts] == list(range(1, len(attempts) + 1))
    for number, count in enumerate(said, 1):
        seqs = [seq for of, seq in newest.events if of == number]
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) <= count
    assert len(seqs) == said[-1]


# --- the log


def test_the_log_names_an_event_by_its_type() -> None:
    """With its figures, job and attempt; without what every log line has anyway."""
    with capture_logs() as log:
        LogSink("j", 3).emit(progress(7))
    (line,) = log
    assert (line["event"], line["log_level"], line["job_id"], line["attempt"]) == ("progress", "info", "j", 3)
    assert (line["seq"], line["step"], line["loss"]) == (7, 7, 0.5)
    assert not {"v", "ts", "type"} & set(line)


def test_failures_and_warnings_have_their_level() -> None:
    """A failure is an error with its message as `detail`, because `message` is the record's own name."""
    failed = JobFailed(seq=1, job_id="j", attempt=1, ts=1, reason="timeout", message="it took too long")
    warning = JobWarning(seq=2, job_id="j", attempt=1, ts=2, message="look here")
    with capture_logs() as log:
        for said in (failed, warning):
            LogSink("j", 1).emit(said)
    first, second = log
    assert (first["event"], first["log_level"], first["detail"]) == ("job_failed", "error", "it took too long")
    assert (second["event"], second["log_level"]) == ("look here", "warning")
