"""The reaper reclaims jobs of dead workers and leaves others alone; the test sets its clock."""

import secrets
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from rq import Queue
from rq.serializers import JSONSerializer
from structlog.testing import capture_logs
from support.redis.fences import die, everything
from support.worker.services import digits_job, out_of_memory, read_only

from preflight import Client
from preflight.queue.untrusted_job import UntrustedJob, fetch_job
from preflight.redis import keys
from tools.faults.machines import RedisServer
from worker.admission import quarantine
from worker.admission.refusal import quarantine_job
from worker.broker.connect import connect
from worker.broker.fencing import Fence
from worker.broker.requeue import read_lease
from worker.broker.rq_records import Execution, RqRecords
from worker.config.settings import Settings
from worker.queue.maintenance import reaper
from worker.queue.maintenance.reaper import CHECK_INTERVAL, CLAIM_TIMEOUT, LEASE_TIMEOUT, MAX_CHECK_GAP, Reaper
from worker.queue.worker import PreflightWorker

STEP = 1.0
"""Seconds between two looks in these tests."""


class Clock:
    """The reaper's `time`, set by the test."""

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
    """An empty Redis, connected as by a worker."""
    return connect(settings)


@pytest.fixture
def watch(raw: Redis, queue: Queue, settings: Settings, clock: Clock) -> "Watch":
    return Watch(raw, queue, settings, clock)


def begun_by(worker: PreflightWorker, queue: Queue, job: UntrustedJob) -> Execution:
    """Record that a worker executes a job."""
    execution = Execution(secrets.token_hex(16), time.time())
    RqRecords(queue.connection, queue, worker.name, acceptance_ttl=1000).begin_execution(job, execution)
    return execution


class Watch:
    """A reaper, and the workers that it observes."""

    def __init__(self, raw: Redis, queue: Queue, settings: Settings, clock: Clock) -> None:
        self.raw = raw
        self.queue = queue
        self._settings = settings
        self._clock = clock
        self.reaper = Reaper(raw, queue, lambda poison: quarantine_job(raw, queue, settings, poison))
        self.client = Client(settings.redis_url)

    def passes(self, seconds: float, meanwhile: Callable[[], object] = lambda: None, *, own: str | None = None) -> None:
        """Let time pass, with a check after each step."""
        for _ in range(round(seconds / STEP)):
            self._clock.now += STEP
            meanwhile()
            self.reaper.check(own=own)

    def observes(self, seconds: float) -> None:
        """Check the jobs now, and let time pass."""
        self.reaper.check()
        self.passes(seconds)

    def enqueue(self, job_id: str, rq_id: str) -> None:
        self.queue.enqueue("worker.jobs.train", digits_job(job_id=job_id).model_dump(mode="json"), job_id=rq_id)

    def taken(self, job_id: str = "j", rq_id: str | None = None) -> None:
        """Enqueue a job and move it to the intermediate queue."""
        self.enqueue(job_id, rq_id or job_id)
        taken = self.raw.lmove(self.queue.key, self.queue.intermediate_queue_key, "LEFT", "RIGHT")
        assert taken == (rq_id or job_id).encode()

    def begun(self, job_id: str = "j", rq_id: str | None = None) -> tuple[PreflightWorker, Fence]:
        """Record a job's execution; returns its worker and the fence, which is not claimed."""
        self.taken(job_id, rq_id)
        worker = PreflightWorker(self.queue, self.raw, self._settings)
        execution = begun_by(worker, self.queue, fetch_job(rq_id or job_id, self.raw))
        return worker, Fence(self.raw, job_id, f"{worker.name}/{execution.id}", ttl=1000, request="r")

    def running(self, job_id: str = "j", rq_id: str | None = None) -> tuple[PreflightWorker, Fence]:
        """Have a worker run a job."""
        worker, fence = self.begun(job_id, rq_id)
        assert fence.claim(rq_id or job_id).status == "claimed"
        self.raw.hset(f"rq:job:{rq_id or job_id}", "status", "started")
        self.raw.lrem(self.queue.intermediate_queue_key, 0, rq_id or job_id)
        return worker, fence

    def nearly_dead(self) -> Fence:
        """Run `j` without renewing its lease: one more step of time makes it dead."""
        _, fence = self.running()
        self.observes(LEASE_TIMEOUT - STEP)
        return fence

    def dies_next(self) -> None:
        """Check that `j` is reclaimed at the next step of time."""
        assert self.waiting == []
        self.passes(STEP)
        assert self.waiting == ["j"]

    @property
    def waiting(self) -> list[str]:
        return self.queue.get_job_ids()

    @property
    def unsettled(self) -> list[bytes]:
        """Return the entries of started registry and intermediate queue."""
        started, between = self.queue.started_job_registry.key, self.queue.intermediate_queue_key
        return [*self.raw.zrange(started, 0, -1), *self.raw.lrange(between, 0, -1)]


def test_a_dead_job_is_reclaimed_after_the_timeout(watch: Watch) -> None:
    """Not before; then it is at the front, and RQ no longer lists it as started."""
    watch.nearly_dead()
    watch.enqueue("x", "x")
    assert watch.waiting == ["x"]
    with capture_logs() as log:
        watch.passes(STEP)
    assert watch.waiting == ["j", "x"]
    assert watch.unsettled == []
    assert watch.client.status("j").status == "queued"
    assert [(line["event"], line["job_id"]) for line in log] == [("job_reclaimed", "j")]
    watch.passes(2 * LEASE_TIMEOUT)
    assert watch.waiting == ["j", "x"]


def test_jobs_that_die_together_wait_in_the_order_in_which_they_were_taken(watch: Watch) -> None:
    for seconds, name in enumerate(("c", "a", "b")):
        watch.running(name)
        (entry,) = (each for each in watch.unsettled if each.startswith(name.encode()))
        watch.raw.zincrby(watch.queue.started_job_registry.key, seconds, entry)  # the registry counts whole seconds
    watch.observes(LEASE_TIMEOUT)
    assert watch.waiting == ["c", "a", "b"]


def test_a_job_whose_lease_is_renewed_is_left_alone(watch: Watch) -> None:
    _, fence = watch.running()
    watch.passes(10 * LEASE_TIMEOUT, lambda: fence.renew_lease(progressed=False))
    watch.passes(LEASE_TIMEOUT - STEP)
    assert fence.renew_lease(progressed=False).cancelled is False
    watch.passes(LEASE_TIMEOUT)
    watch.dies_next()


def test_an_expired_lease_is_no_renewal(watch: Watch) -> None:
    watch.running()
    watch.observes(LEASE_TIMEOUT - 2 * STEP)
    die(watch.raw)
    watch.passes(STEP)
    watch.dies_next()


@pytest.mark.parametrize("step", [-86_400.0, 86_400.0])
def test_a_step_of_the_system_clock_changes_nothing(watch: Watch, step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    watch.nearly_dead()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + step)
    watch.reaper.check()
    watch.dies_next()


def test_a_suspended_reaper_drops_its_observations(watch: Watch, clock: Clock) -> None:
    watch.nearly_dead()
    clock.now += MAX_CHECK_GAP + STEP
    watch.observes(LEASE_TIMEOUT - STEP)
    watch.dies_next()


def test_a_renewal_between_observation_and_reclaim_counts(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = watch.nearly_dead()

    def lease_then_beat(connection: Redis, job_id: str) -> str:
        seen = read_lease(connection, job_id)
        fence.renew_lease(progressed=False)
        return seen

    monkeypatch.setattr(reaper, "read_lease", lease_then_beat)
    before = watch.unsettled
    watch.passes(STEP)
    assert watch.waiting == []
    assert watch.unsettled == before
    assert fence.renew_lease(progressed=False).cancelled is False


@pytest.mark.parametrize("booked", [False, True])
def test_a_job_that_was_taken_and_never_claimed_is_reclaimed(watch: Watch, booked: bool) -> None:
    """Its worker died before or after recording the execution."""
    if booked:
        watch.begun()
    else:
        watch.taken()
    watch.enqueue("x", "x")
    watch.observes(CLAIM_TIMEOUT - STEP)
    assert watch.waiting == ["x"]
    watch.passes(STEP)
    assert watch.waiting == ["j", "x"]
    assert watch.unsettled == []


def test_a_claim_has_its_own_timeout(watch: Watch) -> None:
    """From the record of the execution on; then the lease counts."""
    watch.taken()
    watch.observes(CLAIM_TIMEOUT - STEP)
    worker = PreflightWorker(watch.queue, watch.raw, Settings())
    execution = begun_by(worker, watch.queue, fetch_job("j", watch.raw))
    watch.passes(CLAIM_TIMEOUT)
    assert watch.waiting == []
    Fence(watch.raw, "j", f"{worker.name}/{execution.id}", ttl=1000, request="r").claim("j")
    watch.passes(LEASE_TIMEOUT)
    watch.dies_next()


def test_records_of_a_job_that_ended_are_removed(watch: Watch) -> None:
    watch.running("done")
    watch.raw.hset("rq:job:done", "status", "finished")
    watch.raw.hdel(keys.fence("done"), "running")  # as the end of an attempt is recorded
    watch.running("gone")
    watch.raw.delete("rq:job:gone", keys.lease("done"), keys.lease("gone"))
    watch.observes(CLAIM_TIMEOUT)
    assert (watch.waiting, watch.unsettled) == ([], [])
    assert watch.raw.hget("rq:job:done", "status") == b"finished"
    assert not watch.raw.exists("rq:job:gone")


def test_the_lease_has_the_jobs_id_and_the_queue_has_rqs(watch: Watch) -> None:
    _, fence = watch.running("own", rq_id="rqs")
    watch.passes(2 * LEASE_TIMEOUT, lambda: fence.renew_lease(progressed=False))
    assert watch.waiting == []
    watch.passes(LEASE_TIMEOUT)
    assert watch.waiting == ["rqs"]


def test_a_dead_workers_job_is_reclaimed_at_once(watch: Watch) -> None:
    """Jobs of other workers are not touched. RQ's record would show the dead one as busy until it expires."""
    dead, _ = watch.running("dead")
    alive, _ = watch.running("alive")
    watch.taken("between")
    before = watch.unsettled
    watch.reaper.check(frozenset({dead.name, "another"}))
    assert watch.raw.exists(keys.rq_worker(alive.name))
    assert not watch.raw.exists(keys.rq_worker(dead.name))
    assert watch.waiting == ["dead"]
    assert watch.unsettled == [entry for entry in before if not entry.startswith(b"dead:")]


def test_a_dead_worker_that_deferred_leaves_the_running_attempt_alone(watch: Watch) -> None:
    _, runs = watch.running("j")
    dead, _ = watch.begun("j", rq_id="again")
    lease = read_lease(watch.raw, "j")
    watch.reaper.check(frozenset({dead.name}))
    assert read_lease(watch.raw, "j") == lease
    assert watch.waiting == []
    assert runs.renew_lease(progressed=False).cancelled is False
    watch.passes(2 * LEASE_TIMEOUT, lambda: runs.renew_lease(progressed=False))
    assert watch.waiting == []
    runs.release()
    watch.passes(LEASE_TIMEOUT)
    assert "again" in watch.waiting


@pytest.mark.parametrize("unwritable", [None, keys.events, keys.lifecycle, keys.state, keys.fence])
def test_poison_among_started_jobs_goes_into_quarantine(watch: Watch, unwritable: Callable[[str], str] | None) -> None:
    """Also when its failure cannot be published."""
    watch.running("bad")
    watch.running("good")
    watch.raw.hset("rq:job:bad", "data", "x")
    watch.raw.delete(keys.lease("bad"))
    if unwritable is not None:
        watch.raw.delete(unwritable("bad"))
        watch.raw.sadd(unwritable("bad"), "x")
    with capture_logs() as log:
        watch.observes(LEASE_TIMEOUT)
    assert [line["job_id"] for line in log if line["event"] == "job_failed"] == ["bad"]
    assert (watch.waiting, watch.unsettled) == (["good"], [])
    assert list(quarantine.entries(watch.raw)) == ["bad"]
    if unwritable is None:
        state = watch.client.status("bad")
        assert (state.status, state.reason) == ("failed", "quarantined")


@pytest.mark.parametrize("key", [keys.lease, keys.fence, keys.state])
def test_a_job_key_of_a_wrong_type_does_not_stop_the_reaper(watch: Watch, key: Callable[[str], str]) -> None:
    """That job is quarantined or reclaimed; others are served."""
    watch.running("bad")
    watch.running("good")
    watch.raw.delete(key("bad"))
    watch.raw.sadd(key("bad"), "x")
    watch.observes(LEASE_TIMEOUT)
    assert "good" in watch.waiting
    assert watch.unsettled == []
    assert ("bad" in watch.waiting) != ("bad" in quarantine.entries(watch.raw))


def test_an_entry_without_an_execution_is_observed(watch: Watch) -> None:
    """Older versions of RQ wrote the id alone."""
    watch.taken("old")
    watch.raw.delete(watch.queue.intermediate_queue_key)
    for entry in (b"old", b"\xff", b":x", b":"):
        watch.raw.zadd(watch.queue.started_job_registry.key, {entry: 1})
    watch.observes(CLAIM_TIMEOUT)
    assert watch.waiting == ["old"]
    assert watch.unsettled == []
    assert set(quarantine.entries(watch.raw)) == {"%FF", "(empty)"}


ENTRIES = st.binary(max_size=6) | st.sampled_from(
    [b"j", b"j:", b":", b"j:e", b"j:\xff", b"\xff:e", b"j:e:f", b"j:e\n", b"..:e", b"gone:e", b"\x00", b"j\xc3\xa9:e"]
)
# What is put away as `j:` takes with it what RQ would hold for executions of a job of that name.
BETWEEN = ENTRIES.filter(lambda entry: not entry.startswith(b"j:"))


@pytest.mark.slow
@hypothesis_settings(max_examples=200)
@given(started=st.lists(ENTRIES, max_size=5), between=st.lists(BETWEEN, max_size=5))
@example([b"j:\xff", b"gone:\xff\xfe", b"j"], [b"j", b"j"])
def test_any_bytes_in_the_registries_are_cleared(redis_url: str, started: list[bytes], between: list[bytes]) -> None:
    """A real job among them is requeued once."""
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
        watch.observes(LEASE_TIMEOUT)
    assert watch.unsettled == []
    real = any(entry.partition(b":")[0] == b"j" for entry in started) or b"j" in between
    assert watch.waiting == (["j"] if real else [])


def test_observations_are_dropped_when_redis_was_away(server: RedisServer, clock: Clock) -> None:
    """An attempt could not renew its lease either."""
    settings = Settings(redis_url=server.url)
    raw = connect(settings)
    queue = Queue("preflight", connection=raw, serializer=JSONSerializer)
    watch = Watch(raw, queue, settings, clock)
    watch.nearly_dead()
    server.kill()
    with pytest.raises(RedisConnectionError):
        watch.reaper.check()
    server.start()
    watch.passes(LEASE_TIMEOUT)
    watch.dies_next()


def test_a_read_only_redis_is_retried(watch: Watch) -> None:
    watch.nearly_dead()
    before = everything(watch.raw)
    with read_only(watch.raw), pytest.raises(RedisError):
        watch.passes(STEP)
    assert everything(watch.raw) == before
    watch.passes(LEASE_TIMEOUT + STEP)
    assert watch.waiting == ["j"]


def test_jobs_are_reclaimed_in_a_full_redis(watch: Watch) -> None:
    watch.running()
    with out_of_memory(watch.raw):
        watch.observes(LEASE_TIMEOUT)
        assert watch.waiting == ["j"]


def test_checks_have_an_interval(watch: Watch, clock: Clock) -> None:
    assert watch.reaper.due()
    watch.reaper.check()
    assert not watch.reaper.due()
    clock.now += CHECK_INTERVAL - 0.5
    assert not watch.reaper.due()
    clock.now += 0.5
    assert watch.reaper.due()


def test_two_reapers_reclaim_a_job_once(watch: Watch, raw: Redis, queue: Queue, settings: Settings) -> None:
    """And leave its next attempt alone."""
    watch.running()
    other = Reaper(raw, queue, lambda poison: quarantine_job(raw, queue, settings, poison))
    for one in (watch.reaper, other):
        one.check()
    watch.passes(LEASE_TIMEOUT - STEP, other.check)
    watch.passes(STEP)
    assert watch.waiting == ["j"]
    watch.raw.delete(watch.queue.key, "rq:job:j")
    _, fence = watch.running()
    other.check()
    assert watch.waiting == []
    assert read_lease(watch.raw, "j")
    assert fence.renew_lease(progressed=False).cancelled is False


def test_worker_names_are_unique(watch: Watch) -> None:
    names = {PreflightWorker(watch.queue, watch.raw, Settings()).name for _ in range(3)}
    assert len(names) == 3
    assert all(len(name.rpartition(".")[2]) == len(secrets.token_hex(4)) for name in names)


def test_a_worker_does_not_judge_its_own_job(watch: Watch) -> None:
    """Its supervisor may stall where no other worker is there to take the job."""
    watch.running()
    watch.running("other")
    watch.passes(2 * LEASE_TIMEOUT, own="j")
    assert watch.waiting == ["other"]
