"""Fencing: only the newest attempt of a job can write, and every operation is idempotent."""

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, get_args

import pytest
from hypothesis import event, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer
from support.redis.fences import TTL, claimed, die, done, event_ids, everything, fence_of, progress, started, stream
from support.worker.services import out_of_memory

from preflight.events.counters import counter_increments
from preflight.events.record import EventRecord
from preflight.events.state import state_update
from preflight.redis import keys
from preflight.wire import LIFECYCLE_EVENTS, AnyEvent, TrainResult, flatten
from worker.broker.fencing import LEASE_MS, MAX_DEATHS, MAX_ROUNDS, Claim, Fence, Superseded
from worker.broker.requeue import MAX_SPARED_DEATHS, RqJobRef, defer, read_lease, reclaim

PAYLOAD = {"type": "preflight.train.v1", "dataset": "digits", "model": "cnn"}


def entry(said: AnyEvent, *, result: str | None = None, meta: str | None = None) -> EventRecord:
    record = flatten(said)
    return EventRecord(
        attempt=said.attempt, seq=said.seq, fields=list(itertools.chain(*record.items())),
        state=list(itertools.chain(*state_update(said, record).items())), lifecycle=said.type in LIFECYCLE_EVENTS,
        first=said.type == "job_started", result=result, failure=None,
        meta=meta, totals=counter_increments(said, began=None),
    )  # fmt: skip


def published(fence: Fence, entries: Sequence[EventRecord], *, before: int = 0) -> int | None:
    """Publish for an attempt whose own events up to `before` are in Redis."""
    return fence.publish(entries, before={fence.attempt: before}, kept=1000)


def taken_from(queue: Queue, execution: str = "e") -> RqJobRef:
    """Enqueue job `j` and take it as a worker does."""
    queue.enqueue("worker.jobs.train", PAYLOAD, job_id="j")
    queue.connection.lmove(queue.key, queue.intermediate_queue_key, "LEFT", "RIGHT")
    queue.connection.zadd(queue.started_job_registry.key, {f"j:{execution}": 1})
    queue.connection.hset(f"rq:execution:j:{execution}", "worker_name", "w")
    queue.connection.hset("rq:job:j", mapping={"status": "started", "retries_left": "2"})
    return RqJobRef(queue, "j", execution)


def assert_not_taken(queue: Queue) -> None:
    assert not queue.connection.exists(queue.intermediate_queue_key, queue.started_job_registry.key)
    assert not list(queue.connection.scan_iter("rq:execution:*"))


@pytest.fixture
def place(queue: Queue) -> RqJobRef:
    """Job `j`, taken from the queue."""
    return taken_from(queue)


@pytest.fixture
def fence(raw: Redis) -> Fence:
    """The first attempt of job `j`, claimed by `a`."""
    return claimed(raw, "a")


def test_first_claim_begins_attempt_one_with_expiring_keys(raw: Redis, connection: Redis) -> None:
    fence = fence_of(raw, "a", ttl=77)
    assert fence.attempt == 0
    assert fence.claim("j") == Claim("claimed", 1)
    assert fence.attempt == 1
    assert connection.hgetall(keys.fence("j")) == {
        "attempt": "1", "owner": "a", "deaths": "1", "request": "r", "running": "1",
    }  # fmt: skip
    assert read_lease(raw, "j") == "a 0"
    assert 0 < connection.ttl(keys.fence("j")) <= 77
    assert 0 < raw.pttl(keys.lease("j")) <= LEASE_MS


def test_a_finished_job_is_not_claimed(raw: Redis) -> None:
    """Only the round is counted."""
    raw.set(keys.result("j"), "{}")
    fence = fence_of(raw, "a")
    assert fence.claim("j") == Claim("done", 0)
    assert fence.attempt == 0
    assert raw.hgetall(keys.fence("j")) == {b"rounds": b"1"}
    assert 0 < raw.ttl(keys.fence("j")) <= TTL


def test_rounds_of_a_finished_job_are_limited(raw: Redis) -> None:
    """A recorded end resets the count."""
    raw.set(keys.result("j"), "{}")
    fence = fence_of(raw, "a")
    for _ in range(MAX_ROUNDS):
        assert fence.claim("j") == Claim("done", 0)
    assert fence.claim("j") == Claim("looping", MAX_ROUNDS + 1)
    fence.end_round()
    assert fence.claim("j") == Claim("done", 0)


def test_an_id_belongs_to_one_request(raw: Redis, fence: Fence) -> None:
    """While its job waits, runs or is finished; a failed job frees it."""
    other = Fence(raw, "j", "b", ttl=TTL, request="another")
    assert other.claim("j") == Claim("mismatch", 0)
    die(raw)
    assert other.claim("j") == Claim("mismatch", 0)
    raw.set(keys.result("j"), "{}")
    assert other.claim("j") == Claim("mismatch", 0)
    raw.delete(keys.result("j"))
    fence.release(failed=True)
    assert other.claim("j") == Claim("claimed", 2)


@pytest.mark.parametrize("value", ["x", "", "-5", "1.5", "1e9", "9" * 30, "nan", "inf", "0x10", "\xff"])
@pytest.mark.parametrize("field", ["attempt", "deaths", "rounds", "spared", "seq:1"])
def test_invalid_numbers_in_a_fence_count_as_zero(raw: Redis, queue: Queue, field: str, value: str) -> None:
    raw.hset(keys.fence("j"), field, value)
    fence = claimed(raw, "a")
    assert fence.attempt == 1
    fence.renew_lease(progressed=False)
    assert published(fence, [entry(started())]) == 1
    assert fence.requeue(taken_from(queue), front=True) == "queued"


@pytest.mark.parametrize("ttl_ms", [None, 100 * LEASE_MS])
def test_a_lease_that_does_not_expire_is_ignored(raw: Redis, ttl_ms: int | None) -> None:
    raw.set(keys.lease("j"), "somebody", px=ttl_ms)
    assert fence_of(raw, "a").claim("j") == Claim("claimed", 1)
    assert 0 < raw.pttl(keys.lease("j")) <= LEASE_MS


@pytest.mark.parametrize("limits", [{}, {"max_deaths": 100}], ids=["default", "more retries"])
def test_a_job_is_poisoned_after_its_maximum_of_deaths(raw: Redis, limits: dict[str, int]) -> None:
    """Three, or the job's retries where those are more; a refused claim changes nothing."""
    allowed = limits.get("max_deaths", MAX_DEATHS)
    for attempt in range(1, allowed + 1):
        assert fence_of(raw, f"w{attempt}").claim("j", **limits) == Claim("claimed", attempt)
        die(raw)
    before = everything(raw)
    assert fence_of(raw, "next").claim("j", **limits) == Claim("poisoned", allowed)
    assert everything(raw) == before


def test_deaths_of_workers_short_of_memory_do_not_count(raw: Redis, place: RqJobRef) -> None:
    """Up to a limit; the death of a supervisor alone counts."""
    for _ in range(MAX_SPARED_DEATHS + MAX_DEATHS):
        claimed(raw, "a").renew_lease(progressed=False, low_memory=True)
        reclaim(raw, "j", place, lease=read_lease(raw, "j"), worker_died=True)
    assert fence_of(raw, "a").claim("j") == Claim("poisoned", MAX_DEATHS)
    raw.delete(keys.fence("j"))
    for _ in range(MAX_DEATHS):
        claimed(raw, "a").renew_lease(progressed=False, low_memory=True)
        reclaim(raw, "j", place, lease=read_lease(raw, "j"))
    assert fence_of(raw, "a").claim("j") == Claim("poisoned", MAX_DEATHS)


def test_a_repeated_claim_returns_the_same_attempt(raw: Redis, connection: Redis) -> None:
    assert fence_of(raw, "a").claim("j") == fence_of(raw, "a").claim("j") == Claim("claimed", 1)
    assert connection.hget(keys.fence("j"), "deaths") == "1"
    claimed(raw, "a").renew_lease(progressed=False)
    assert fence_of(raw, "a").claim("j") == Claim("claimed", 1)


@pytest.mark.parametrize("other", ["b", "a", "a/12", "a/1 ", "A/1", "", "a/"])
def test_a_running_job_is_busy_for_other_owners(raw: Redis, other: str) -> None:
    """Owners are compared by the whole name; a refused claim changes nothing."""
    claimed(raw, "a/1")
    before = everything(raw)
    assert fence_of(raw, other).claim("j") == Claim("busy", 0)
    assert everything(raw) == before


@pytest.mark.parametrize("reset", ["progress", "release", "requeue"])
def test_deaths_in_a_row_are_counted(raw: Redis, queue: Queue, reset: str) -> None:
    """Progress, an end and a requeue each reset the count."""
    for attempt in range(1, 3 * MAX_DEATHS):
        fence = fence_of(raw, f"w{attempt}")
        assert fence.claim("j") == Claim("claimed", attempt)
        if attempt % MAX_DEATHS != 0:
            die(raw)
        elif reset == "progress":
            fence.renew_lease(progressed=True)
            fence.renew_lease(progressed=False)
            die(raw)
        else:
            end(fence, RqJobRef(queue, "j", ""), reset)


def end(fence: Fence, place: RqJobRef, how: str) -> None:
    if how == "release":
        fence.release()
    else:
        fence.requeue(place, front=True)


def test_an_attempt_without_progress_counts_as_a_death(raw: Redis) -> None:
    for number in range(MAX_DEATHS):
        fence = claimed(raw, f"w{number}")
        for _ in range(5):
            fence.renew_lease(progressed=False)
        die(raw)
    assert fence_of(raw, "next").claim("j").status == "poisoned"


def test_attempt_numbers_are_unique(raw: Redis) -> None:
    """Redis knows some, the disk of the claimant others."""
    assert fence_of(raw, "a").claim("j", least=5) == Claim("claimed", 5)
    die(raw)
    assert fence_of(raw, "b").claim("j", least=2) == Claim("claimed", 6)
    assert fence_of(raw, "b").claim("j", least=7) == Claim("claimed", 6)


def test_one_of_many_concurrent_claims_wins(redis_url: str, raw: Redis) -> None:
    def claim(owner: int, job_id: str, start: threading.Barrier) -> str:
        fence = Fence(Redis.from_url(redis_url), job_id, f"w{owner}", ttl=TTL, request="r")
        start.wait()
        return fence.claim("j").status

    with ThreadPoolExecutor(20) as pool:
        for job_id in (f"j{number}" for number in range(20)):
            start = threading.Barrier(20, timeout=30)
            claims = [pool.submit(claim, owner, job_id, start) for owner in range(20)]
            assert sorted(one.result() for one in claims) == ["busy"] * 19 + ["claimed"]
            assert raw.hget(keys.fence(job_id), "deaths") == b"1"


def test_each_renewal_changes_and_extends_the_lease(raw: Redis, fence: Fence) -> None:
    seen = set[str]()
    for _ in range(5):
        raw.pexpire(keys.lease("j"), 5)
        raw.expire(keys.fence("j"), 5)
        assert fence.renew_lease(progressed=False).cancelled is False
        assert raw.pttl(keys.lease("j")) > 5
        assert raw.ttl(keys.fence("j")) > 5
        seen.add(read_lease(raw, "j"))
    assert len(seen) == 5


def test_a_renewal_reports_cancellation(raw: Redis, fence: Fence) -> None:
    raw.set(keys.cancel("j"), "1")
    assert fence.renew_lease(progressed=False).cancelled is True
    assert read_lease(raw, "j") == "a 1"
    raw.delete(keys.cancel("j"))
    assert fence.renew_lease(progressed=False).cancelled is False


def test_an_attempt_may_renew_an_expired_lease(raw: Redis, fence: Fence) -> None:
    die(raw)
    assert fence.renew_lease(progressed=False).cancelled is False
    assert fence_of(raw, "b").claim("j").status == "busy"


def test_a_lost_fence_is_restored(raw: Redis, connection: Redis) -> None:
    fence_of(raw, "x").claim("j", least=3)
    fence = fence_of(raw, "x")
    assert fence.claim("j").number == 3
    raw.flushall()
    assert fence.renew_lease(progressed=False).cancelled is False
    assert connection.hgetall(keys.fence("j")) == {
        "attempt": "3", "owner": "x", "lost": "1", "request": "r", "low_memory": "0",
    }  # fmt: skip
    assert 0 < connection.ttl(keys.fence("j")) <= TTL
    assert fence_of(raw, "b").claim("j").status == "busy"
    die(raw)
    assert fence_of(raw, "b").claim("j") == Claim("claimed", 4)


@pytest.mark.parametrize("how", ["release", "requeue"])
def test_a_fence_restored_at_the_end_expires(raw: Redis, queue: Queue, fence: Fence, how: str) -> None:
    raw.flushall()
    end(fence, RqJobRef(queue, "j", "e"), how)
    assert 0 < raw.ttl(keys.fence("j")) <= TTL


def test_an_older_copy_of_redis_does_not_revive_an_older_attempt(raw: Redis, connection: Redis) -> None:
    old = claimed(raw, "old")
    snapshot = everything(raw)
    die(raw)
    new = claimed(raw, "new")
    raw.flushall()
    for key, value in snapshot.items():
        assert value is not None
        raw.restore(key, 0, value)
    assert new.renew_lease(progressed=False).cancelled is False
    assert connection.hmget(keys.fence("j"), "attempt", "owner") == ["2", "new"]
    with pytest.raises(Superseded):
        old.renew_lease(progressed=False)


def test_of_two_attempts_of_one_number_the_owner_of_the_fence_stays(raw: Redis) -> None:
    """Redis was emptied, and another worker claimed the job before its owner renewed its lease."""
    lost = claimed(raw, "lost")
    raw.flushall()
    found = claimed(raw, "found")
    assert (lost.attempt, found.attempt) == (1, 1)
    with pytest.raises(Superseded):
        lost.renew_lease(progressed=False)
    assert found.renew_lease(progressed=False).cancelled is False


def test_each_event_is_published_once_and_in_order(connection: Redis, fence: Fence) -> None:
    events: list[AnyEvent] = [started(), *(progress(seq) for seq in range(2, 8))]
    entries = [entry(said) for said in events]
    assert published(fence, entries[:3]) == 3
    assert published(fence, entries[:3]) == 3
    assert published(fence, entries[1:5], before=3) == 5
    assert published(fence, entries[5:6], before=5) == 6
    assert published(fence, entries, before=6) == 7
    assert published(fence, [], before=7) == 7
    assert stream(connection, keys.events("j")) == [flatten(said) for said in events]


def test_lifecycle_events_have_their_own_stream(connection: Redis, fence: Fence) -> None:
    entries = [entry(said) for said in (started(), progress(2), progress(3), done(4))]
    published(fence, entries)
    published(fence, entries, before=4)
    assert [record["type"] for record in stream(connection, keys.lifecycle("j"))] == ["job_started", "training_done"]


def test_the_state_has_the_latest_value_of_each_field(connection: Redis, fence: Fence) -> None:
    published(fence, [entry(said) for said in (started(), progress(2), progress(3))])
    state = connection.hgetall(keys.state("j"))
    assert (state["status"], state["step"], state["worker"], state["updated_at"]) == ("running", "3", "w", "3.0")
    published(fence, [entry(done(4))], before=3)
    state = connection.hgetall(keys.state("j"))
    assert (state["status"], state["step"], state["test_accuracy"]) == ("finished", "3", "0.75")
    assert not {"seq", "v", "job_id", "type", "ts"} & set(state)


def test_the_result_is_stored_with_the_last_event(raw: Redis, connection: Redis) -> None:
    fence = claimed(raw, "a", ttl=77)
    result = TrainResult(job_id="j", attempt=1, status="finished", test_accuracy=0.75).model_dump_json()
    published(fence, [entry(started()), entry(progress(2))])
    assert not connection.exists(keys.result("j"))
    published(fence, [entry(done(3), result=result)], before=2)
    assert connection.get(keys.result("j")) == result
    for key in (keys.events, keys.lifecycle, keys.state, keys.fence, keys.result):
        assert 0 < connection.ttl(key("j")) <= 77


def test_meta_is_written_only_to_an_existing_job(connection: Redis, queue: Queue, fence: Fence) -> None:
    published(fence, [entry(started(), meta='{"a": 1}')])
    assert not connection.exists("rq:job:j")
    queue.enqueue("worker.jobs.train", PAYLOAD, job_id="j")
    published(fence, [entry(progress(2), meta='{"a": 2}'), entry(progress(3))], before=1)
    assert connection.hget("rq:job:j", "meta") == '{"a": 2}'
    published(fence, [entry(progress(2), meta='{"a": 1}')], before=3)
    assert connection.hget("rq:job:j", "meta") == '{"a": 2}'


def test_lost_events_are_detected(raw: Redis, connection: Redis, fence: Fence) -> None:
    """An older copy of Redis's data was restored: nothing is written."""
    entries = [entry(progress(seq)) for seq in range(1, 7)]
    published(fence, entries[:2])
    before = everything(raw)
    assert published(fence, entries[4:], before=4) is None
    assert everything(raw) == before
    assert published(fence, entries) == 6
    assert event_ids(connection, keys.events("j")) == [(1, seq) for seq in range(1, 7)]


def test_lost_events_of_an_earlier_attempt_are_detected(raw: Redis) -> None:
    first = claimed(raw, "a")
    published(first, [entry(progress(seq)) for seq in (1, 2)])
    die(raw)
    second = claimed(raw, "b")
    assert second.publish([entry(progress(3))], before={1: 2}, kept=1000) == 0
    raw.hset(keys.fence("j"), "seq:1", 2)
    before = everything(raw)
    assert second.publish([entry(started(attempt=2))], before={1: 3, 2: 0}, kept=1000) is None
    assert everything(raw) == before


def test_an_emptied_redis_is_detected(raw: Redis, connection: Redis, fence: Fence) -> None:
    """Only the fence is restored."""
    entries = [entry(progress(seq)) for seq in range(1, 4)]
    published(fence, entries[:2])
    raw.flushall()
    assert published(fence, entries[2:], before=2) is None
    assert connection.keys() == [keys.fence("j")]
    assert published(fence, entries) == 3
    assert event_ids(connection, keys.events("j")) == [(1, 1), (1, 2), (1, 3)]


def test_unpublished_events_keep_their_attempt_number(raw: Redis, connection: Redis) -> None:
    """The first event of a new attempt empties the state."""
    first = claimed(raw, "a")
    left = [entry(started()), *(entry(progress(seq)) for seq in range(2, 5))]
    published(first, left[:2])
    die(raw)
    second = claimed(raw, "b")
    assert published(second, left) == 0
    assert published(second, [*left, entry(started(attempt=2))]) == 1
    assert event_ids(connection, keys.events("j")) == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1)]
    state = connection.hgetall(keys.state("j"))
    assert (state["attempt"], state["status"]) == ("2", "running")
    assert not {"loss", "step"} & set(state)


def test_a_full_redis_takes_all_of_a_publication_or_nothing(raw: Redis, connection: Redis, fence: Fence) -> None:
    published(fence, [entry(started())])
    before = everything(raw)
    with out_of_memory(raw), pytest.raises(Exception, match="command not allowed when used memory"):
        published(fence, [entry(progress(2)), entry(done(3), result="{}")], before=1)
    assert everything(raw) == before
    assert connection.hget(keys.fence("j"), "seq:1") == "1"


Act = Callable[[Fence, RqJobRef], object]
ACTS: dict[str, Act] = {
    "beat": lambda fence, _: fence.renew_lease(progressed=False),
    "further": lambda fence, _: fence.renew_lease(progressed=True),
    "events": lambda fence, _: published(fence, [entry(started()), entry(done(2), result="{}", meta="{}")]),
    "leftovers": lambda fence, _: published(fence, [entry(progress(9, attempt=2))]),
    "nothing": lambda fence, _: published(fence, []),
    "lost": lambda fence, _: published(fence, [], before=99),
    "front": lambda fence, place: fence.requeue(place, front=True),
    "retry": lambda fence, place: fence.requeue(place, front=False, retries_left=0),
    "rest": lambda fence, _: fence.release(),
}
SILENT = ("front", "retry", "rest")


@pytest.mark.parametrize("act", ACTS)
def test_a_superseded_attempt_writes_nothing_at_all(raw: Redis, act: str, place: RqJobRef) -> None:
    """Not even its longer time to live is set."""
    old = claimed(raw, "old", ttl=100 * TTL)
    die(raw)
    new = claimed(raw, "new")
    published(new, [entry(started(attempt=2), meta="{}")])
    raw.set(keys.cancel("j"), "1")
    before = everything(raw)
    for _ in range(2):
        if act in SILENT:
            ACTS[act](old, place)
        else:
            with pytest.raises(Superseded):
                ACTS[act](old, place)
    assert everything(raw) == before
    for key in (keys.fence, keys.events, keys.lifecycle, keys.state):
        assert 0 < raw.ttl(key("j")) <= TTL
    assert new.renew_lease(progressed=False).cancelled is True


@pytest.mark.parametrize("front", [True, False])
def test_a_requeued_job_waits(connection: Redis, queue: Queue, place: RqJobRef, fence: Fence, front: bool) -> None:
    for other in ("x", "y"):
        queue.enqueue("worker.jobs.train", PAYLOAD, job_id=other)
    fence.requeue(place, front=front)
    assert queue.get_job_ids() == (["j", "x", "y"] if front else ["x", "y", "j"])
    assert connection.hget("rq:job:j", "status") == "queued"
    assert_not_taken(queue)
    assert read_lease(connection, "j") == ""
    assert fence_of(connection, "b").claim("j") == Claim("claimed", 2)


def test_a_requeued_job_waits_once(raw: Redis, queue: Queue, place: RqJobRef, fence: Fence) -> None:
    for other in ("x", "j", "y"):
        raw.rpush(queue.key, other)
    fence.requeue(place, front=True)
    fence.requeue(place, front=False)
    defer(raw, place)
    assert reclaim(raw, "j", place, lease="")
    assert queue.get_job_ids() == ["x", "j", "y"]


@pytest.mark.parametrize(("left", "then"), [(None, "2"), (1, "1"), (0, "0")])
def test_requeue_sets_retries(connection: Redis, place: RqJobRef, fence: Fence, left: int | None, then: str) -> None:
    """Set, not decremented: a repeated call counts once."""
    for _ in range(2):
        fence.requeue(place, front=True, retries_left=left)
    assert connection.hget("rq:job:j", "retries_left") == then


@pytest.mark.parametrize("by", ["owner", "watcher"])
@pytest.mark.parametrize("status", ["finished", "failed", "canceled", "stopped", "none"])
def test_a_job_that_has_ended_is_not_requeued(raw: Redis, place: RqJobRef, fence: Fence, status: str, by: str) -> None:
    """RQ's records of the execution are removed."""
    if status == "none":
        raw.delete("rq:job:j")
    else:
        raw.hset("rq:job:j", "status", status)
        raw.hdel(keys.fence("j"), "running")  # as the end of an attempt is recorded
    job = raw.hgetall("rq:job:j")
    if by == "owner":
        fence.requeue(place, front=True, retries_left=7)
    else:
        assert reclaim(raw, "j", place, lease=read_lease(raw, "j")) is False
    assert place.queue.get_job_ids() == []
    assert raw.hgetall("rq:job:j") == job
    assert_not_taken(place.queue)
    assert read_lease(raw, "j") == ""


@pytest.mark.parametrize("written", ["999999999", "99999999", "9" * 30, "-1", "nan", "x" * 100_000])
def test_a_number_of_attempts_that_somebody_wrote_is_not_gone_on_with(raw: Redis, queue: Queue, written: str) -> None:
    """It would outgrow what is read, and each renewal would find the fence lost."""
    taken_from(queue)
    raw.hset(keys.fence("j"), "attempt", written)
    fence = fence_of(raw, "a")
    assert fence.claim("j") == Claim("claimed", 1)
    assert not fence.renew_lease(progressed=False).records_lost


@pytest.mark.parametrize("by", ["owner", "watcher"])
@pytest.mark.parametrize("status", ["finished", "failed", "stopped", "nonsense", "x" * 100_000])
def test_a_status_that_somebody_wrote_does_not_end_a_running_job(
    raw: Redis, place: RqJobRef, fence: Fence, status: str, by: str
) -> None:
    """Whoever may enqueue may write RQ's hash of a job: the fence decides."""
    raw.hset("rq:job:j", "status", status)
    if by == "owner":
        assert fence.requeue(place, front=True) == "queued"
    else:
        assert reclaim(raw, "j", place, lease=read_lease(raw, "j")) is True
    assert place.queue.get_job_ids() == ["j"]
    assert raw.hget("rq:job:j", "status") == b"queued"
    assert fence_of(raw, "b").claim("j").status == "claimed"


@pytest.mark.parametrize("status", ["finished", "failed", "canceled", "stopped"])
def test_a_job_that_ended_after_its_take_is_not_claimed(raw: Redis, queue: Queue, status: str) -> None:
    """Requeued by RQ, it is."""
    taken_from(queue)
    raw.hset("rq:job:j", "status", status)
    assert fence_of(raw, "a").claim("j") == Claim("over", 0)
    assert not raw.exists(keys.fence("j"), keys.lease("j"))
    raw.hset("rq:job:j", "status", "queued")
    assert fence_of(raw, "a").claim("j") == Claim("claimed", 1)


def test_a_dead_job_is_reclaimed_to_the_front(raw: Redis, connection: Redis, queue: Queue, place: RqJobRef) -> None:
    """Its death stays counted, and the next attempt supersedes it."""
    old = claimed(raw, "a")
    queue.enqueue("worker.jobs.train", PAYLOAD, job_id="x")
    assert reclaim(raw, "j", place, lease="a 0")
    assert queue.get_job_ids() == ["j", "x"]
    assert connection.hmget("rq:job:j", "status", "retries_left") == ["queued", "2"]
    assert_not_taken(queue)
    assert connection.hget(keys.fence("j"), "deaths") == "1"
    assert fence_of(raw, "b").claim("j") == Claim("claimed", 2)
    with pytest.raises(Superseded):
        old.renew_lease(progressed=False)


@pytest.mark.parametrize("seen", ["", "a 0", "a", "b 1"])
def test_a_job_with_a_newer_lease_is_not_reclaimed(raw: Redis, seen: str, place: RqJobRef) -> None:
    claimed(raw, "a").renew_lease(progressed=False)
    before = everything(raw)
    assert not reclaim(raw, "j", place, lease=seen)
    assert everything(raw) == before


def test_one_execution_is_reclaimed_and_not_the_other(raw: Redis, queue: Queue) -> None:
    """RQ may list two executions of one job."""
    place = taken_from(queue, "one")
    raw.zadd(queue.started_job_registry.key, {"j:two": 1, "k:one": 1})
    raw.hset("rq:execution:j:two", "worker_name", "w")
    assert reclaim(raw, "j", place, lease="")
    assert raw.zrange(queue.started_job_registry.key, 0, -1) == [b"j:two", b"k:one"]
    assert raw.exists("rq:execution:j:two")


def test_deferring_leaves_the_running_attempt_alone(raw: Redis, connection: Redis, queue: Queue) -> None:
    place = taken_from(queue, "mine")
    runs = claimed(raw, "other")
    queue.enqueue("worker.jobs.train", PAYLOAD, job_id="x")
    fenced = connection.hgetall(keys.fence("j"))
    defer(raw, place)
    defer(raw, place)
    assert read_lease(raw, "j") == "other 0"
    assert connection.hgetall(keys.fence("j")) == fenced
    assert queue.get_job_ids() == ["x", "j"]
    assert connection.hget("rq:job:j", "status") == "started"
    assert_not_taken(queue)
    assert runs.renew_lease(progressed=False).cancelled is False


def test_release_ends_the_attempt(raw: Redis, connection: Redis, fence: Fence) -> None:
    raw.set(keys.cancel("j"), "1")
    for _ in range(2):
        fence.release()
        assert connection.keys() == [keys.fence("j")]
        assert connection.hgetall(keys.fence("j")) == {"attempt": "1", "owner": "a", "deaths": "0", "request": "r"}


def test_leases_and_requeues_work_in_a_full_redis(raw: Redis, queue: Queue, place: RqJobRef, fence: Fence) -> None:
    raw.pexpire(keys.lease("j"), LEASE_MS // 2)
    with out_of_memory(raw):
        assert fence.renew_lease(progressed=True).cancelled is False
        assert read_lease(raw, "j") == "a 1"
        assert raw.pttl(keys.lease("j")) > LEASE_MS // 2
        fence.requeue(place, front=True)
        assert queue.get_job_ids() == ["j"]
        fence.renew_lease(progressed=False)
        assert reclaim(raw, "j", place, lease="a 2")
        fence.renew_lease(progressed=False)
        fence.release()
        assert read_lease(raw, "j") == ""


@dataclass
class Attempt:
    """An execution as this test knows it."""

    fence: Fence
    number: int = 0
    """As it was claimed; 0 before."""
    said: int = 0
    """Events that it has made."""
    taken: int = 0
    """Those that it knows to be in Redis."""


What = Literal["claim", "die", "beat", "say", "say, no answer", "repeat", "hand back", "rest", "take back", "aside"]
STEPS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(("claim", *get_args(What)))), max_size=40)


@hypothesis_settings(max_examples=300)
@given(steps=STEPS)
def test_only_the_newest_attempt_writes(redis_url: str, steps: list[tuple[int, What]]) -> None:
    """Three executions in any order; no event is lost or doubled."""
    raw, connection = Redis.from_url(redis_url), Redis.from_url(redis_url, decode_responses=True)
    raw.flushall()
    queue = Queue("preflight", connection=raw, serializer=JSONSerializer)
    place = taken_from(queue)
    executions = [Attempt(fence_of(raw, f"w{number}")) for number in range(3)]
    newest = 0
    for who, what in steps:
        one, before = executions[who], everything(raw)
        match what:
            case "claim":
                free = read_lease(raw, "j") == ""
                claim = one.fence.claim("j", max_deaths=1000)  # how often it dies is not what this is about
                mine = read_lease(raw, "j").startswith(f"w{who} ")
                assert (claim.status == "claimed") == (free or mine)
                if free:
                    newest += 1
                    executions[who] = Attempt(one.fence, newest)
                if mine:
                    assert claim.number == newest
            case "die":
                die(raw)
            case "take back":
                reclaim(raw, "j", place, lease=read_lease(raw, "j"))
            case "aside":
                lease = read_lease(raw, "j")
                defer(raw, place)
                assert read_lease(raw, "j") == lease
            case _ if one.number == 0:
                continue
            case _ if one.number < newest:
                event("superseded")
                act(one, what, place, superseded=True)
                assert everything(raw) == before
            case _:
                act(one, what, place, superseded=False)
        assert raw.llen(queue.key) <= 1
    heard = event_ids(connection, keys.events("j"))
    assert heard == sorted(heard)
    for number in range(1, newest + 1):
        seqs = [seq for attempt, seq in heard if attempt == number]
        assert seqs == list(range(1, len(seqs) + 1))
    for one in executions:
        assert one.taken <= len([0 for attempt, _ in heard if attempt == one.number]) <= one.said


def act(one: Attempt, what: What, place: RqJobRef, *, superseded: bool) -> None:
    if what in ("hand back", "rest"):
        end(one.fence, place, "requeue" if what == "hand back" else "release")
    elif superseded:
        with pytest.raises(Superseded):
            say(one, what)
    else:
        say(one, what)


def say(one: Attempt, what: What) -> None:
    if what == "beat":
        one.fence.renew_lease(progressed=False)
        return
    if what != "repeat":
        one.said += 2
    sent = range(1 if what == "repeat" else one.taken + 1, one.said + 1)
    last = published(one.fence, [entry(progress(seq, one.number)) for seq in sent], before=one.taken)
    assert last is not None
    if what != "say, no answer":
        one.taken = last
