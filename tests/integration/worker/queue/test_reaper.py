"""Jobs whose worker died: when they are taken back, and when they are left alone. The watcher's clock is set here."""

import secrets
import time
from collections.abc import Callable

import pytest
from faults.machines import RedisServer
from fences import die, everything
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from rq import Queue
from rq.serializers import JSONSerializer
from services import digits_job
from structlog.testing import capture_logs

from worker.broker import keys
from worker.broker.fencing import Fence, Superseded, lease_of
from worker.broker.rq_records import Execution, RqRecords
from worker.client import Client
from worker.config.settings import Settings
from worker.queue import quarantine, reaper
from worker.queue.reaper import DEAD_AFTER, LOOK_EVERY, LOST_SIGHT, UNCLAIMED_AFTER, Reaper
from worker.queue.refusal import put_away
from worker.queue.untrusted_job import SafeJob, load
from worker.queue.worker import PreflightWorker, connect

STEP = 1.0
"""Seconds between two looks in these tests."""


class Clock:
    """Stands for the `time` that the reaper reads: it goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reaper, "time", clock)
    return clock


@pytest.fixture
def raw(settings: Settings) -> Redis:
    """A connection as a worker has it, to an empty Redis."""
    return connect(settings)


@pytest.fixture
def watch(raw: Redis, queue: Queue, settings: Settings, clock: Clock) -> "Watch":
    return Watch(raw, queue, settings, clock)


def begun_by(worker: PreflightWorker, queue: Queue, job: SafeJob) -> Execution:
    """Record that a worker executes a job."""
    execution = Execution(secrets.token_hex(16), time.time())
    RqRecords(queue.connection, queue, worker.name, accepted_ttl=1000).begin_execution(job, execution)
    return execution


class Watch:
    """A reaper as an idle worker has it, and the workers that it watches."""

    def __init__(self, raw: Redis, queue: Queue, settings: Settings, clock: Clock) -> None:
        self.raw = raw
        self.queue = queue
        self._settings = settings
        self._clock = clock
        self.reaper = Reaper(raw, queue, lambda poison: put_away(raw, queue, settings, poison))
        self.client = Client(settings.redis_url)

    def passes(self, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Let time pass and look all the while, last of all when it has passed."""
        for _ in range(round(seconds / STEP)):
            self._clock.now += STEP
            meanwhile()
            self.reaper.look()

    def taken(self, job_id: str = "j", rq_id: str | None = None) -> str:
        """Enqueue a job and have a worker take it, as far as the list between; returns RQ's id of it."""
        rq_id = rq_id or job_id
        self.queue.enqueue("worker.jobs.train", digits_job(job_id=job_id).model_dump(mode="json"), job_id=rq_id)
        assert self.raw.lmove(self.queue.key, self.queue.intermediate_queue_key, "LEFT", "RIGHT") == rq_id.encode()
        return rq_id

    def begun(self, job_id: str = "j", rq_id: str | None = None) -> tuple[PreflightWorker, Fence]:
        """Have a worker take a job and book it as begun; returns it and the fence, which is not claimed."""
        rq_id = self.taken(job_id, rq_id)
        worker = PreflightWorker(self.queue, self.raw, self._settings)
        execution = begun_by(worker, self.queue, load(rq_id, self.raw))
        return worker, Fence(self.raw, job_id, f"{worker.name}/{execution.id}", ttl=1000, request="r")

    def running(self, job_id: str = "j", rq_id: str | None = None) -> tuple[PreflightWorker, Fence]:
        """Have a worker run a job."""
        worker, fence = self.begun(job_id, rq_id)
        assert fence.claim("j").word == "claimed"
        self.raw.hset(f"rq:job:{rq_id or job_id}", "status", "started")
        self.raw.lrem(self.queue.intermediate_queue_key, 0, rq_id or job_id)
        return worker, fence

    @property
    def waiting(self) -> list[str]:
        return self.queue.get_job_ids()

    @property
    def unsettled(self) -> list[bytes]:
        """What is still held for taken."""
        started, between = self.queue.started_job_registry.key, self.queue.intermediate_queue_key
        return [*self.raw.zrange(started, 0, -1), *self.raw.lrange(between, 0, -1)]


# --- a lease that stands still


def test_a_dead_job_is_taken_back_after_its_time(watch: Watch) -> None:
    """Not a moment before; then it waits before all others, and RQ holds it for running no more."""
    watch.running()
    watch.queue.enqueue("worker.jobs.train", digits_job().model_dump(mode="json"), job_id="x")
    watch.reaper.look()
    watch.passes(DEAD_AFTER - STEP)
    assert watch.waiting == ["x"]
    with capture_logs() as log:
        watch.passes(STEP)
    assert watch.waiting == ["j", "x"]
    assert watch.unsettled == []
    assert watch.client.status("j").status == "queued"
    assert [(line["event"], line["job_id"]) for line in log] == [("job_taken_back", "j")]
    watch.passes(2 * DEAD_AFTER)
    assert watch.waiting == ["j", "x"]


def test_a_job_that_beats_is_left_alone(watch: Watch) -> None:
    """However long it runs; its time begins with the last beat."""
    _, fence = watch.running()
    watch.passes(10 * DEAD_AFTER, lambda: fence.beat(further=False))
    watch.passes(DEAD_AFTER - STEP)
    assert fence.beat(further=False).cancelled is False
    watch.passes(DEAD_AFTER)
    assert watch.waiting == []
    watch.passes(STEP)
    assert watch.waiting == ["j"]


def test_a_lease_that_runs_out_is_no_sign_of_life(watch: Watch) -> None:
    """Redis forgets it on its own: the time since the last beat counts on, neither more nor less."""
    watch.running()
    watch.reaper.look()
    watch.passes(DEAD_AFTER - 2 * STEP)
    die(watch.raw)
    watch.passes(STEP)
    assert watch.waiting == []
    watch.passes(STEP)
    assert watch.waiting == ["j"]


@pytest.mark.parametrize("step", [-86_400.0, 86_400.0])
def test_a_step_of_the_system_clock_changes_nothing(watch: Watch, step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day forth makes nothing dead, a day back nothing immortal."""
    watch.running()
    watch.reaper.look()
    watch.passes(DEAD_AFTER - STEP)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + step)
    watch.reaper.look()
    assert watch.waiting == []
    watch.passes(STEP)
    assert watch.waiting == ["j"]


def test_a_watcher_that_stood_still_concludes_nothing(watch: Watch, clock: Clock) -> None:
    """It did not see what happened meanwhile: the job gets its whole time again."""
    watch.running()
    watch.reaper.look()
    watch.passes(DEAD_AFTER - STEP)
    clock.now += LOST_SIGHT + STEP
    watch.reaper.look()
    watch.passes(DEAD_AFTER - STEP)
    assert watch.waiting == []
    watch.passes(STEP)
    assert watch.waiting == ["j"]


def test_a_beat_between_the_look_and_the_grip_counts(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt wakes up just then: it lives, and goes on."""
    _, fence = watch.running()
    watch.reaper.look()
    watch.passes(DEAD_AFTER - STEP)

    def lease_then_beat(connection: Redis, job_id: str) -> str:
        seen = lease_of(connection, job_id)
        fence.beat(further=False)
        return seen

    monkeypatch.setattr(reaper, "lease_of", lease_then_beat)
    before = watch.unsettled
    watch.passes(STEP)
    assert watch.waiting == []
    assert watch.unsettled == before
    assert fence.beat(further=False).cancelled is False


def test_whoever_is_taken_back_is_out(watch: Watch) -> None:
    """The attempt that was taken for dead goes on as long as none has followed, and not a moment longer."""
    _, old = watch.running()
    watch.reaper.look()
    watch.passes(DEAD_AFTER)
    assert watch.waiting == ["j"]
    watch.raw.delete(watch.queue.key, "rq:job:j")
    _, new = watch.running()
    with pytest.raises(Superseded):
        old.beat(further=False)
    assert new.beat(further=False).cancelled is False


# --- no lease at all


@pytest.mark.parametrize("booked", [False, True])
def test_a_job_that_was_taken_and_never_claimed_is_taken_back(watch: Watch, booked: bool) -> None:
    """Its worker died between taking it from the queue and claiming it, before or after booking it as begun."""
    if booked:
        watch.begun()
    else:
        watch.taken()
    watch.queue.enqueue("worker.jobs.train", digits_job().model_dump(mode="json"), job_id="x")
    watch.reaper.look()
    watch.passes(UNCLAIMED_AFTER - STEP)
    assert watch.waiting == ["x"]
    watch.passes(STEP)
    assert watch.waiting == ["j", "x"]
    assert watch.unsettled == []


def test_a_job_gets_its_time_to_be_claimed(watch: Watch) -> None:
    """From when it was booked, and after that its lease counts."""
    watch.taken()
    watch.reaper.look()
    watch.passes(UNCLAIMED_AFTER - STEP)
    worker = PreflightWorker(watch.queue, watch.raw, Settings())
    execution = begun_by(worker, watch.queue, load("j", watch.raw))
    watch.passes(UNCLAIMED_AFTER)
    assert watch.waiting == []
    Fence(watch.raw, "j", f"{worker.name}/{execution.id}", ttl=1000, request="r").claim("j")
    watch.passes(DEAD_AFTER)
    assert watch.waiting == []
    watch.passes(STEP)
    assert watch.waiting == ["j"]


def test_a_job_that_ended_is_cleared_away(watch: Watch) -> None:
    """Its worker died between its last word and RQ's books, or RQ has forgotten it: it is not run again."""
    watch.running("done")
    watch.raw.hset("rq:job:done", "status", "finished")
    watch.running("gone")
    watch.raw.delete("rq:job:gone", keys.lease("done"), keys.lease("gone"))
    watch.reaper.look()
    watch.passes(UNCLAIMED_AFTER)
    assert (watch.waiting, watch.unsettled) == ([], [])
    assert watch.raw.hget("rq:job:done", "status") == b"finished"
    assert not watch.raw.exists("rq:job:gone")


def test_a_job_is_known_by_its_own_id(watch: Watch) -> None:
    """The lease is that of the request's `job_id`; what goes back is RQ's id."""
    _, fence = watch.running("own", rq_id="rqs")
    watch.passes(2 * DEAD_AFTER, lambda: fence.beat(further=False))
    assert watch.waiting == []
    watch.passes(DEAD_AFTER)
    assert watch.waiting == ["rqs"]


# --- workers that are known to be dead


def test_a_dead_workers_job_is_taken_back_at_once(watch: Watch) -> None:
    """At the first look; those of others, and those that wait, are not touched."""
    dead, _ = watch.running("dead")
    watch.running("alive")
    watch.taken("between")
    before = watch.unsettled
    watch.reaper.look(frozenset({dead.name, "another"}))
    assert watch.waiting == ["dead"]
    assert watch.unsettled == [entry for entry in before if not entry.startswith(b"dead:")]


def test_a_dead_worker_takes_no_other_with_it(watch: Watch) -> None:
    """It died while it stepped aside for the attempt that runs the job: that one goes on, and nobody follows it."""
    _, runs = watch.running("j")
    dead, _ = watch.begun("j", rq_id="again")
    lease = lease_of(watch.raw, "j")
    watch.reaper.look(frozenset({dead.name}))
    assert lease_of(watch.raw, "j") == lease
    assert watch.waiting == []
    assert runs.beat(further=False).cancelled is False
    watch.passes(2 * DEAD_AFTER, lambda: runs.beat(further=False))
    assert watch.waiting == []
    runs.rest()
    watch.passes(DEAD_AFTER)
    assert "again" in watch.waiting


# --- what cannot be a job, and Redis that does not answer


def test_poison_among_the_running_goes_into_quarantine(watch: Watch) -> None:
    """It is gone from the registry, told to whoever watches, and the good job beside it is taken back."""
    watch.running("bad")
    watch.running("good")
    watch.raw.hset("rq:job:bad", "data", "x")
    watch.raw.delete(keys.lease("bad"))
    watch.reaper.look()
    watch.passes(DEAD_AFTER)
    assert watch.waiting == ["good"]
    assert watch.unsettled == []
    assert list(quarantine.entries(watch.raw)) == ["bad"]
    state = watch.client.status("bad")
    assert (state.status, state.reason) == ("failed", "quarantined")


@pytest.mark.parametrize("key", [keys.events, keys.lifecycle, keys.state, keys.fence])
def test_poison_is_put_away_whatever_its_keys_are(watch: Watch, key: Callable[[str], str]) -> None:
    """Where nobody can be told, it is out of the way all the same, and the watcher goes on."""
    watch.running("bad")
    watch.running("good")
    watch.raw.hset("rq:job:bad", "data", "x")
    watch.raw.delete(keys.lease("bad"), key("bad"))
    watch.raw.sadd(key("bad"), "x")
    watch.reaper.look()
    watch.passes(DEAD_AFTER)
    assert (watch.waiting, watch.unsettled) == (["good"], [])
    assert list(quarantine.entries(watch.raw)) == ["bad"]


@pytest.mark.parametrize("key", [keys.lease, keys.fence, keys.state])
def test_a_key_of_another_type_blinds_no_watcher(watch: Watch, key: Callable[[str], str]) -> None:
    """A job that is spoiled in this way is put away, or taken back for the next worker to do so; others are served."""
    watch.running("bad")
    watch.running("good")
    watch.raw.delete(key("bad"))
    watch.raw.sadd(key("bad"), "x")
    watch.reaper.look()
    watch.passes(DEAD_AFTER)
    assert "good" in watch.waiting
    assert watch.unsettled == []
    assert ("bad" in watch.waiting) != ("bad" in quarantine.entries(watch.raw))


def test_an_entry_without_an_execution_is_seen(watch: Watch) -> None:
    """Older versions of RQ wrote the id alone: such a job is taken back once, and such poison put away once."""
    watch.taken("old")
    watch.raw.delete(watch.queue.intermediate_queue_key)
    for entry in (b"old", b"\xff", b":x", b":"):
        watch.raw.zadd(watch.queue.started_job_registry.key, {entry: 1})
    watch.reaper.look()
    watch.passes(UNCLAIMED_AFTER)
    assert watch.waiting == ["old"]
    assert watch.unsettled == []
    assert set(quarantine.entries(watch.raw)) == {"%FF", ""}


ENTRIES = st.binary(max_size=6) | st.sampled_from(
    [b"j", b"j:", b":", b"j:e", b"j:\xff", b"\xff:e", b"j:e:f", b"j:e\n", b"..:e", b"gone:e", b"\x00", b"j\xc3\xa9:e"]
)


# What is put away as `j:` takes with it what RQ would hold for executions of a job of that name.
BETWEEN = ENTRIES.filter(lambda entry: not entry.startswith(b"j:"))


@hypothesis_settings(max_examples=200)
@given(started=st.lists(ENTRIES, max_size=5), between=st.lists(BETWEEN, max_size=5))
@example([b"j:\xff", b"gone:\xff\xfe", b"j"], [b"j", b"j"])
def test_no_bytes_stay_or_stop_the_watcher(redis_url: str, started: list[bytes], between: list[bytes]) -> None:
    """Whatever somebody writes for a job that was taken: it is settled in time, and the real one waits once."""
    raw = Redis.from_url(redis_url)
    raw.flushall()
    settings, clock = Settings(redis_url=redis_url), Clock()
    queue = Queue("preflight", connection=raw, serializer=JSONSerializer)
    queue.enqueue("worker.jobs.train", digits_job().model_dump(mode="json"), job_id="j")
    raw.delete(queue.key)
    for entry in started:
        raw.zadd(queue.started_job_registry.key, {entry: 1})
    for entry in between:
        raw.rpush(queue.intermediate_queue_key, entry)
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setattr(reaper, "time", clock)
        watch = Watch(raw, queue, settings, clock)
        watch.reaper.look()
        watch.passes(DEAD_AFTER)
    assert watch.unsettled == []
    real = any(entry.partition(b":")[0] == b"j" for entry in started) or b"j" in between
    assert watch.waiting == (["j"] if real else [])


def test_what_was_seen_before_redis_went_away_counts_no_more(server: RedisServer, clock: Clock) -> None:
    """An attempt could not beat then: when Redis is back it gets its whole time again."""
    settings = Settings(redis_url=server.url)
    raw = connect(settings)
    queue = Queue("preflight", connection=raw, serializer=JSONSerializer)
    watch = Watch(raw, queue, settings, clock)
    watch.running()
    watch.reaper.look()
    watch.passes(DEAD_AFTER - STEP)
    server.kill()
    with pytest.raises(RedisConnectionError):
        watch.reaper.look()
    server.start()
    watch.passes(DEAD_AFTER)
    assert watch.waiting == []
    watch.passes(STEP)
    assert watch.waiting == ["j"]


def test_a_redis_that_takes_nothing_back_is_tried_again(watch: Watch) -> None:
    """Read-only for a while: the look fails and changes nothing, and a later one succeeds."""
    watch.running()
    watch.reaper.look()
    watch.passes(DEAD_AFTER - STEP)
    before = everything(watch.raw)
    watch.raw.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(RedisError):
            watch.passes(STEP)
    finally:
        watch.raw.execute_command("REPLICAOF", "NO", "ONE")
    assert everything(watch.raw) == before
    watch.passes(DEAD_AFTER + STEP)
    assert watch.waiting == ["j"]


def test_a_full_redis_gives_dead_jobs_back(watch: Watch) -> None:
    """What is removed makes room for what is written."""
    watch.running()
    watch.reaper.look()
    watch.raw.config_set("maxmemory", 1)
    try:
        watch.passes(DEAD_AFTER)
        assert watch.waiting == ["j"]
    finally:
        watch.raw.config_set("maxmemory", 0)


def test_a_look_is_due_now_and_then(watch: Watch, clock: Clock) -> None:
    """At first at once, then after a while."""
    assert watch.reaper.due()
    watch.reaper.look()
    assert not watch.reaper.due()
    clock.now += LOOK_EVERY - 0.5
    assert not watch.reaper.due()
    clock.now += 0.5
    assert watch.reaper.due()


def test_two_watchers_take_a_job_back_once(watch: Watch, raw: Redis, queue: Queue, settings: Settings) -> None:
    """Each sees it dead at the same time; it waits once, and its next attempt is not taken from under it."""
    watch.running()
    other = Reaper(raw, queue, lambda poison: put_away(raw, queue, settings, poison))
    for one in (watch.reaper, other):
        one.look()
    watch.passes(DEAD_AFTER - STEP, other.look)
    watch.passes(STEP)
    assert watch.waiting == ["j"]
    watch.raw.delete(watch.queue.key, "rq:job:j")
    _, fence = watch.running()
    other.look()
    assert watch.waiting == []
    assert lease_of(watch.raw, "j")
    assert fence.beat(further=False).cancelled is False


def test_a_worker_has_a_name_of_its_own(watch: Watch) -> None:
    """Two of one process, too: what one leaves is not taken for the other's."""
    names = {PreflightWorker(watch.queue, watch.raw, Settings()).name for _ in range(3)}
    assert len(names) == 3
    assert all(len(name.rpartition(".")[2]) == len(secrets.token_hex(4)) for name in names)
