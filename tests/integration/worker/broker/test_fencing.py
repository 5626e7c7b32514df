"""The fence: of all the attempts of a job, only the newest can write, and whatever is asked twice is done once."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pytest
from fences import TTL, claimed, die, done, everything, fence_of, progress, said_in, started, stream
from hypothesis import event, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from worker.broker import keys
from worker.broker.fencing import (
    DEATHS_ALLOWED,
    LEASE_MS,
    MAX_ROUNDS,
    SPARED_DEATHS,
    Claim,
    Entry,
    Fence,
    Place,
    Superseded,
    lease_of,
    step_aside,
    take_back,
)
from worker.events.counters import counted
from worker.events.state import folded
from worker.wire import LIFECYCLE, AnyEvent, TrainResult, flatten

PAYLOAD = {"type": "preflight.train.v1", "dataset": "digits", "model": "cnn"}


@pytest.fixture
def full(raw: Redis) -> Iterator[Callable[[], None]]:
    """A function from which on Redis has no memory left: `OOM command not allowed`."""

    def fill() -> None:
        raw.config_set("maxmemory", 1)

    yield fill
    raw.config_set("maxmemory", 0)


def taken_over(raw: Redis) -> tuple[Fence, Fence]:
    """Return an attempt that was taken for dead, and the one that has taken over."""
    old = claimed(raw, "old", ttl=100 * TTL)
    die(raw)
    return old, claimed(raw, "new")


def entry(said: AnyEvent, *, result: str | None = None, meta: str | None = None) -> Entry:
    record = flatten(said)
    return Entry(
        attempt=said.attempt, seq=said.seq, fields=list(itertools.chain(*record.items())),
        state=list(itertools.chain(*folded(said, record).items())), lifecycle=said.type in LIFECYCLE,
        first=said.type == "job_started", result=result, failure=None,
        meta=meta, totals=counted(said, began=None),
    )  # fmt: skip


def published(fence: Fence, entries: Sequence[Entry], *, before: int = 0) -> int | None:
    """Publish on behalf of an attempt that knows the events up to `before` of its own to be in Redis."""
    return fence.publish(entries, "rq:job:j", before={fence.attempt: before}, kept=1000)


def taken_from(queue: Queue, execution: str = "e") -> Place:
    """Enqueue job `j` and take it as a worker does; return where RQ keeps it."""
    queue.enqueue("worker.jobs.train", PAYLOAD, job_id="j")
    queue.connection.lmove(queue.key, queue.intermediate_queue_key, "LEFT", "RIGHT")
    queue.connection.zadd(queue.started_job_registry.key, {f"j:{execution}": 1})
    queue.connection.hset(f"rq:execution:j:{execution}", "worker_name", "w")
    queue.connection.hset("rq:job:j", mapping={"status": "started", "retries_left": "2"})
    return Place(queue, "j", execution)


def see_that_it_is_no_longer_taken(queue: Queue) -> None:
    assert not queue.connection.exists(queue.intermediate_queue_key, queue.started_job_registry.key)
    assert not list(queue.connection.scan_iter("rq:execution:*"))


# --- claim


def test_the_first_claim_begins_attempt_one(raw: Redis, connection: Redis) -> None:
    """It puts up the fence and the lease, both of which Redis forgets in time."""
    fence = fence_of(raw, "a", ttl=77)
    assert fence.attempt == 0
    assert fence.claim("j") == Claim("claimed", 1)
    assert fence.attempt == 1
    assert connection.hgetall(keys.fence("j")) == {
        "attempt": "1", "owner": "a", "deaths": "1", "request": "r",
    }  # fmt: skip
    assert lease_of(raw, "j") == "a 0"
    assert 0 < connection.ttl(keys.fence("j")) <= 77
    assert 0 < raw.pttl(keys.lease("j")) <= LEASE_MS


def test_a_finished_job_is_not_begun(raw: Redis) -> None:
    """Its result says so, though nobody runs it; only that it came round is counted."""
    raw.set(keys.result("j"), "{}")
    fence = fence_of(raw, "a")
    assert fence.claim("j") == Claim("done", 0)
    assert fence.attempt == 0
    assert raw.hgetall(keys.fence("j")) == {b"rounds": b"1"}
    assert 0 < raw.ttl(keys.fence("j")) <= TTL


def test_a_finished_job_does_not_come_round_for_ever(raw: Redis) -> None:
    """Whatever keeps its end from being recorded; one that was recorded begins to count anew."""
    raw.set(keys.result("j"), "{}")
    fence = fence_of(raw, "a")
    for _ in range(MAX_ROUNDS):
        assert fence.claim("j") == Claim("done", 0)
    assert fence.claim("j") == Claim("looping", MAX_ROUNDS + 1)
    fence.end_round()
    assert fence.claim("j") == Claim("done", 0)


def test_an_id_belongs_to_one_request(raw: Redis) -> None:
    """While its job waits for another attempt, runs or is finished; one that failed leaves it to the next."""
    fence, other = claimed(raw, "a"), Fence(raw, "j", "b", ttl=TTL, request="another")
    assert other.claim("j") == Claim("mismatch", 0)
    die(raw)
    assert other.claim("j") == Claim("mismatch", 0)
    raw.set(keys.result("j"), "{}")
    assert other.claim("j") == Claim("mismatch", 0)
    raw.delete(keys.result("j"))
    fence.rest(failed=True)
    assert other.claim("j") == Claim("claimed", 2)


@pytest.mark.parametrize("value", ["x", "", "-5", "1.5", "1e9", "9" * 30, "nan", "inf", "0x10", "\xff"])
@pytest.mark.parametrize("field", ["attempt", "deaths", "rounds", "spared", "seq:1"])
def test_a_number_that_is_none_counts_as_none(raw: Redis, queue: Queue, field: str, value: str) -> None:
    """Somebody wrote into a fence: the job is claimed, kept and ended as without."""
    raw.hset(keys.fence("j"), field, value)
    fence = claimed(raw, "a")
    assert fence.attempt == 1
    fence.beat(further=False)
    assert published(fence, [entry(started())]) == 1
    assert fence.hand_back(taken_from(queue), front=True) == "queued"


@pytest.mark.parametrize("ttl_ms", [None, 100 * LEASE_MS])
def test_a_lease_that_would_stay_holds_no_job(raw: Redis, ttl_ms: int | None) -> None:
    """Somebody wrote it; the job went round the queue for ever, because each round was a new execution to watch."""
    raw.set(keys.lease("j"), "somebody", px=ttl_ms)
    assert fence_of(raw, "a").claim("j") == Claim("claimed", 1)
    assert 0 < raw.pttl(keys.lease("j")) <= LEASE_MS


@pytest.mark.parametrize(("retries", "allowed"), [(0, DEATHS_ALLOWED), (100, 100)])
def test_as_many_deaths_are_allowed_as_retries(raw: Redis, retries: int, allowed: int) -> None:
    """Three at least."""
    for _ in range(allowed):
        assert fence_of(raw, "a").claim("j", deaths_allowed=max(DEATHS_ALLOWED, retries)).word == "claimed"
        die(raw)
    assert fence_of(raw, "a").claim("j", deaths_allowed=max(DEATHS_ALLOWED, retries)) == Claim("poisoned", allowed)


def test_the_death_of_a_worker_short_of_memory_is_not_the_jobs(raw: Redis, queue: Queue) -> None:
    """It is not counted, ten times; that of a supervisor alone is."""
    place = taken_from(queue)
    for _ in range(SPARED_DEATHS + DEATHS_ALLOWED):
        claimed(raw, "a").beat(further=False, low_memory=True)
        take_back(raw, "j", place, lease=lease_of(raw, "j"), worker_died=True)
    assert fence_of(raw, "a").claim("j") == Claim("poisoned", DEATHS_ALLOWED)
    raw.delete(keys.fence("j"))
    for _ in range(DEATHS_ALLOWED):
        claimed(raw, "a").beat(further=False, low_memory=True)
        take_back(raw, "j", place, lease=lease_of(raw, "j"))
    assert fence_of(raw, "a").claim("j") == Claim("poisoned", DEATHS_ALLOWED)


def test_a_running_job_is_not_begun(raw: Redis) -> None:
    """As long as somebody holds the lease; nothing is written."""
    claimed(raw, "a")
    before = everything(raw)
    assert fence_of(raw, "b").claim("j") == Claim("busy", 0)
    assert everything(raw) == before


def test_a_job_that_dies_three_times_is_poisoned(raw: Redis) -> None:
    """The fourth claim is refused with the number of deaths; nothing is written."""
    for attempt in range(1, DEATHS_ALLOWED + 1):
        assert fence_of(raw, f"w{attempt}").claim("j") == Claim("claimed", attempt)
        die(raw)
    before = everything(raw)
    assert fence_of(raw, "next").claim("j") == Claim("poisoned", DEATHS_ALLOWED)
    assert everything(raw) == before


def test_a_claim_whose_answer_was_lost_is_repeated(raw: Redis, connection: Redis) -> None:
    """The same owner gets the same attempt, and it counts as one death."""
    assert fence_of(raw, "a").claim("j") == fence_of(raw, "a").claim("j") == Claim("claimed", 1)
    assert connection.hget(keys.fence("j"), "deaths") == "1"
    claimed(raw, "a").beat(further=False)
    assert fence_of(raw, "a").claim("j") == Claim("claimed", 1)


@pytest.mark.parametrize("other", ["a", "a/12", "a/1 ", "A/1", "", "a/"])
def test_an_owner_of_a_similar_name_is_another(raw: Redis, other: str) -> None:
    """The whole name counts."""
    claimed(raw, "a/1")
    assert fence_of(raw, other).claim("j") == Claim("busy", 0)


def further(fence: Fence, queue: Queue) -> None:
    fence.beat(further=True)
    fence.beat(further=False)
    die(queue.connection)


def rested(fence: Fence, queue: Queue) -> None:  # noqa: ARG001 - the signature of the others
    fence.rest()


def handed_back(fence: Fence, queue: Queue) -> None:
    fence.hand_back(Place(queue, "j", ""), front=True)


@pytest.mark.parametrize("ended", [further, rested, handed_back])
def test_deaths_in_a_row_are_counted(raw: Redis, queue: Queue, ended: Callable[[Fence, Queue], None]) -> None:
    """Progress, an end and a return to the queue each begin the count anew."""
    for attempt in range(1, 3 * DEATHS_ALLOWED):
        fence = fence_of(raw, f"w{attempt}")
        assert fence.claim("j") == Claim("claimed", attempt)
        if attempt % DEATHS_ALLOWED == 0:
            ended(fence, queue)
        else:
            die(raw)


def test_an_attempt_that_comes_no_further_counts_as_a_death(raw: Redis) -> None:
    """However long it lived."""
    for number in range(DEATHS_ALLOWED):
        fence = claimed(raw, f"w{number}")
        for _ in range(5):
            fence.beat(further=False)
        die(raw)
    assert fence_of(raw, "next").claim("j").word == "poisoned"


def test_a_number_is_not_used_twice(raw: Redis) -> None:
    """Neither one that Redis knows nor one that the disk of the claimant does, as after Redis lost its data."""
    assert fence_of(raw, "a").claim("j", least=5) == Claim("claimed", 5)
    die(raw)
    assert fence_of(raw, "b").claim("j", least=2) == Claim("claimed", 6)
    assert fence_of(raw, "b").claim("j", least=7) == Claim("claimed", 6)


def test_of_many_that_claim_at_once_one_wins(redis_url: str, raw: Redis) -> None:
    """Twenty threads on connections of their own: one attempt begins, for all others the job is busy."""
    for number in range(20):
        start, answers = threading.Barrier(20, timeout=30), list[Claim]()

        def claim(
            owner: str, number: int = number, start: threading.Barrier = start, answers: list[Claim] = answers
        ) -> None:
            fence = Fence(Redis.from_url(redis_url), f"j{number}", owner, ttl=TTL, request="r")
            start.wait()
            answers.append(fence.claim("j"))

        threads = [threading.Thread(target=claim, args=(f"w{owner}",)) for owner in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answer.word for answer in answers) == ["busy"] * 19 + ["claimed"]
        assert raw.hget(keys.fence(f"j{number}"), "deaths") == b"1"


# --- beat


def test_every_beat_changes_the_lease(raw: Redis) -> None:
    """So that a watcher sees the job live without a clock in common; the lease lasts as long again."""
    fence, seen = claimed(raw, "a"), set[str]()
    for _ in range(5):
        raw.pexpire(keys.lease("j"), 5)
        raw.expire(keys.fence("j"), 5)
        assert fence.beat(further=False).cancelled is False
        assert raw.pttl(keys.lease("j")) > 5
        assert raw.ttl(keys.fence("j")) > 5
        seen.add(lease_of(raw, "j"))
    assert len(seen) == 5


def test_a_beat_hears_a_cancellation(raw: Redis) -> None:
    """As long as it stands, and the lease is renewed all the same."""
    fence = claimed(raw, "a")
    raw.set(keys.cancel("j"), "1")
    assert fence.beat(further=False).cancelled is True
    assert lease_of(raw, "j") == "a 1"
    raw.delete(keys.cancel("j"))
    assert fence.beat(further=False).cancelled is False


def test_an_attempt_outlives_its_lease(raw: Redis) -> None:
    """One that nobody took over meanwhile goes on where it was."""
    fence = claimed(raw, "a")
    die(raw)
    assert fence.beat(further=False).cancelled is False
    assert fence_of(raw, "b").claim("j").word == "busy"


def test_a_fence_that_vanished_is_put_up_again(raw: Redis, connection: Redis) -> None:
    """Redis was emptied: the attempt that runs keeps its number and its lease, and no other can claim the job."""
    fence_of(raw, "x").claim("j", least=3)
    fence = fence_of(raw, "x")
    assert fence.claim("j").number == 3
    raw.flushall()
    assert fence.beat(further=False).cancelled is False
    assert connection.hgetall(keys.fence("j")) == {
        "attempt": "3", "owner": "x", "lost": "1", "request": "r", "low_memory": "0",
    }  # fmt: skip
    assert 0 < connection.ttl(keys.fence("j")) <= TTL
    assert fence_of(raw, "b").claim("j").word == "busy"
    die(raw)
    assert fence_of(raw, "b").claim("j") == Claim("claimed", 4)


@pytest.mark.parametrize("ends", ["rest", "hand_back"])
def test_a_fence_that_is_put_up_at_the_end_does_not_stay(
    raw: Redis, queue: Queue, ends: Literal["rest", "hand_back"]
) -> None:
    """Redis forgets it, as it would have forgotten the one that vanished."""
    fence = claimed(raw, "a")
    raw.flushall()
    if ends == "rest":
        fence.rest()
    else:
        fence.hand_back(Place(queue, "j", "e"), front=True)
    assert 0 < raw.ttl(keys.fence("j")) <= TTL


def test_a_restored_redis_does_not_bring_back_an_older_attempt(raw: Redis, connection: Redis) -> None:
    """Its fence shows the attempt before: the one that runs takes its place again, and the older one stays out."""
    old = claimed(raw, "old")
    snapshot = everything(raw)
    die(raw)
    new = claimed(raw, "new")
    raw.flushall()
    for key, value in snapshot.items():
        assert value is not None
        raw.restore(key, 0, value)
    assert new.beat(further=False).cancelled is False
    assert connection.hmget(keys.fence("j"), "attempt", "owner") == ["2", "new"]
    with pytest.raises(Superseded):
        old.beat(further=False)


def test_of_two_attempts_of_one_number_the_first_stays(raw: Redis) -> None:
    """Redis was emptied, and another worker claimed the job before the one that ran it came back."""
    lost = claimed(raw, "lost")
    raw.flushall()
    found = claimed(raw, "found")
    assert (lost.attempt, found.attempt) == (1, 1)
    with pytest.raises(Superseded):
        lost.beat(further=False)
    assert found.beat(further=False).cancelled is False


# --- publish


def test_each_event_arrives_once(raw: Redis, connection: Redis) -> None:
    """Sent twice, sent again with newer ones, sent one by one: in the stream it stands once, in order and whole."""
    fence = claimed(raw, "a")
    events: list[AnyEvent] = [started(), *(progress(seq) for seq in range(2, 8))]
    entries = [entry(said) for said in events]
    assert published(fence, entries[:3]) == 3
    assert published(fence, entries[:3]) == 3
    assert published(fence, entries[1:5], before=3) == 5
    assert published(fence, entries[5:6], before=5) == 6
    assert published(fence, entries, before=6) == 7
    assert published(fence, [], before=7) == 7
    assert stream(connection, keys.events("j")) == [flatten(said) for said in events]


def test_turning_points_go_to_a_stream_of_their_own(raw: Redis, connection: Redis) -> None:
    """Once each, too, and nothing else does."""
    fence = claimed(raw, "a")
    entries = [entry(said) for said in (started(), progress(2), progress(3), done(4))]
    published(fence, entries)
    published(fence, entries, before=4)
    assert [record["type"] for record in stream(connection, keys.lifecycle("j"))] == ["job_started", "training_done"]


def test_the_state_is_the_latest_of_everything(raw: Redis, connection: Redis) -> None:
    """Values stay until another event has newer ones; the status follows the turning points."""
    fence = claimed(raw, "a")
    published(fence, [entry(said) for said in (started(), progress(2), progress(3))])
    state = connection.hgetall(keys.state("j"))
    assert (state["status"], state["step"], state["worker"], state["updated_at"]) == ("running", "3", "w", "3.0")
    published(fence, [entry(done(4))], before=3)
    state = connection.hgetall(keys.state("j"))
    assert (state["status"], state["step"], state["test_accuracy"]) == ("finished", "3", "0.75")
    assert not {"seq", "v", "job_id", "type", "ts"} & set(state)


def test_a_new_attempt_begins_the_state_anew(raw: Redis, connection: Redis) -> None:
    """Figures of the attempt before are not shown as its own."""
    first = claimed(raw, "a")
    published(first, [entry(started()), entry(progress(2))])
    die(raw)
    second = claimed(raw, "b")
    published(second, [entry(started(attempt=2))])
    state = connection.hgetall(keys.state("j"))
    assert (state["attempt"], state["status"]) == ("2", "running")
    assert "loss" not in state


def test_the_result_is_stored_with_the_last_event(raw: Redis, connection: Redis) -> None:
    """Neither can be without the other, and both are kept for as long."""
    fence = claimed(raw, "a", ttl=77)
    result = TrainResult(job_id="j", attempt=1, status="finished", test_accuracy=0.75).model_dump_json()
    published(fence, [entry(started()), entry(progress(2))])
    assert not connection.exists(keys.result("j"))
    published(fence, [entry(done(3), result=result)], before=2)
    assert connection.get(keys.result("j")) == result
    for key in (keys.events, keys.lifecycle, keys.state, keys.fence, keys.result):
        assert 0 < connection.ttl(key("j")) <= 77


def test_the_meta_is_kept_where_the_job_is(raw: Redis, connection: Redis, queue: Queue) -> None:
    """A job that RQ has forgotten does not come back as a hash of nothing but meta."""
    fence = claimed(raw, "a")
    published(fence, [entry(started(), meta='{"a": 1}')])
    assert not connection.exists("rq:job:j")
    queue.enqueue("worker.jobs.train", PAYLOAD, job_id="j")
    published(fence, [entry(progress(2), meta='{"a": 2}'), entry(progress(3))], before=1)
    assert connection.hget("rq:job:j", "meta") == '{"a": 2}'
    published(fence, [entry(progress(2), meta='{"a": 1}')], before=3)
    assert connection.hget("rq:job:j", "meta") == '{"a": 2}'


def test_lost_events_are_noticed(raw: Redis, connection: Redis) -> None:
    """Redis has fewer than it had taken, as after an older copy of its data was restored: nothing is written."""
    fence = claimed(raw, "a")
    entries = [entry(progress(seq)) for seq in range(1, 7)]
    published(fence, entries[:2])
    before = everything(raw)
    assert published(fence, entries[4:], before=4) is None
    assert everything(raw) == before
    assert published(fence, entries) == 6
    assert said_in(connection, keys.events("j")) == [(1, seq) for seq in range(1, 7)]


def test_lost_events_of_an_earlier_attempt_are_noticed(raw: Redis) -> None:
    """Though none of the newest is missing."""
    first = claimed(raw, "a")
    published(first, [entry(progress(seq)) for seq in (1, 2)])
    die(raw)
    second = claimed(raw, "b")
    assert second.publish([entry(progress(3))], "rq:job:j", before={1: 2}, kept=1000) == 0
    raw.hset(keys.fence("j"), "seq:1", 2)
    before = everything(raw)
    assert second.publish([entry(started(attempt=2))], "rq:job:j", before={1: 3, 2: 0}, kept=1000) is None
    assert everything(raw) == before


def test_an_emptied_redis_is_noticed(raw: Redis, connection: Redis) -> None:
    """Only the fence is put up again; sent from the beginning, everything arrives."""
    fence = claimed(raw, "a")
    entries = [entry(progress(seq)) for seq in range(1, 4)]
    published(fence, entries[:2])
    raw.flushall()
    assert published(fence, entries[2:], before=2) is None
    assert connection.keys() == [keys.fence("j")]
    assert published(fence, entries) == 3
    assert said_in(connection, keys.events("j")) == [(1, 1), (1, 2), (1, 3)]


def test_what_an_earlier_attempt_left_goes_under_its_own_number(raw: Redis, connection: Redis) -> None:
    """The newest attempt publishes what Redis had not taken of an older one, and nothing of it twice."""
    first = claimed(raw, "a")
    left = [entry(started()), *(entry(progress(seq)) for seq in range(2, 5))]
    published(first, left[:2])
    die(raw)
    second = claimed(raw, "b")
    assert published(second, left) == 0
    assert published(second, [*left, entry(started(attempt=2))]) == 1
    assert said_in(connection, keys.events("j")) == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1)]
    state = connection.hgetall(keys.state("j"))
    assert (state["attempt"], "step" in state) == ("2", False)


def test_all_or_nothing_arrives_in_a_full_redis(raw: Redis, connection: Redis, full: Callable[[], None]) -> None:
    """The first write is refused, so that no event is in one place and not in the other."""
    fence = claimed(raw, "a")
    published(fence, [entry(started())])
    before = everything(raw)
    full()
    with pytest.raises(Exception, match="OOM command not allowed"):
        published(fence, [entry(progress(2)), entry(done(3), result="{}")], before=1)
    assert everything(raw) == before
    assert connection.hget(keys.fence("j"), "seq:1") == "1"


# --- what an attempt that was taken over can still write: nothing

Act = Callable[[Fence, Place], object]
ACTS: dict[str, Act] = {
    "beat": lambda fence, _: fence.beat(further=False),
    "further": lambda fence, _: fence.beat(further=True),
    "events": lambda fence, _: published(fence, [entry(started()), entry(done(2), result="{}", meta="{}")]),
    "leftovers": lambda fence, _: published(fence, [entry(progress(9, attempt=2))]),
    "nothing": lambda fence, _: published(fence, []),
    "lost": lambda fence, _: published(fence, [], before=99),
    "front": lambda fence, place: fence.hand_back(place, front=True),
    "retry": lambda fence, place: fence.hand_back(place, front=False, retries_left=0),
    "rest": lambda fence, _: fence.rest(),
}
SILENT = ("front", "retry", "rest")


@pytest.mark.parametrize("act", ACTS)
def test_a_superseded_attempt_writes_nothing_at_all(raw: Redis, queue: Queue, act: str) -> None:
    """Whatever it tries, everything in Redis stays as it was; not even its longer time to live is set."""
    place = taken_from(queue)
    old, new = taken_over(raw)
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
    assert new.beat(further=False).cancelled is True


# --- back into the queue


@pytest.mark.parametrize("front", [True, False])
def test_a_job_that_is_handed_back_waits(raw: Redis, connection: Redis, queue: Queue, front: bool) -> None:
    """Before all others or behind them; it is no longer taken, claimed or running."""
    place = taken_from(queue)
    fence = claimed(raw, "a")
    for other in ("x", "y"):
        queue.enqueue("worker.jobs.train", PAYLOAD, job_id=other)
    fence.hand_back(place, front=front)
    assert queue.get_job_ids() == (["j", "x", "y"] if front else ["x", "y", "j"])
    assert connection.hget("rq:job:j", "status") == "queued"
    see_that_it_is_no_longer_taken(queue)
    assert lease_of(raw, "j") == ""
    assert fence_of(raw, "b").claim("j") == Claim("claimed", 2)


def test_a_job_waits_once(raw: Redis, queue: Queue) -> None:
    """One that stands in the queue already keeps its place, however often it is put back."""
    place = taken_from(queue)
    fence = claimed(raw, "a")
    for other in ("x", "j", "y"):
        raw.rpush(queue.key, other)
    fence.hand_back(place, front=True)
    fence.hand_back(place, front=False)
    step_aside(raw, place)
    assert take_back(raw, "j", place, lease="")
    assert queue.get_job_ids() == ["x", "j", "y"]


@pytest.mark.parametrize(("left", "then"), [(None, "2"), (1, "1"), (0, "0")])
def test_retries_are_counted_by_who_hands_back(
    raw: Redis, connection: Redis, queue: Queue, left: int | None, then: str
) -> None:
    """A number is set, so that a repeated call counts once; without one none is spent."""
    place = taken_from(queue)
    fence = claimed(raw, "a")
    for _ in range(2):
        fence.hand_back(place, front=True, retries_left=left)
    assert connection.hget("rq:job:j", "retries_left") == then


def by_its_owner(fence: Fence, place: Place) -> bool:
    fence.hand_back(place, front=True, retries_left=7)
    return False


def by_a_watcher(fence: Fence, place: Place) -> bool:  # noqa: ARG001 - the signature of the other
    connection = place.queue.connection
    return take_back(connection, "j", place, lease=lease_of(connection, "j"))


@pytest.mark.parametrize("back", [by_its_owner, by_a_watcher])
@pytest.mark.parametrize("status", ["finished", "failed", "canceled", "stopped", "none"])
def test_a_job_that_has_ended_is_left_alone(
    raw: Redis, queue: Queue, status: str, back: Callable[[Fence, Place], bool]
) -> None:
    """It is cleared from what RQ holds for running, and does not come back into the queue."""
    place = taken_from(queue)
    fence = claimed(raw, "a")
    if status == "none":
        raw.delete("rq:job:j")
    else:
        raw.hset("rq:job:j", "status", status)
    job = raw.hgetall("rq:job:j")
    assert back(fence, place) is False
    assert queue.get_job_ids() == []
    assert raw.hgetall("rq:job:j") == job
    see_that_it_is_no_longer_taken(queue)
    assert lease_of(raw, "j") == ""


@pytest.mark.parametrize("status", ["finished", "failed", "canceled", "stopped"])
def test_a_job_that_ended_meanwhile_is_not_claimed(raw: Redis, queue: Queue, status: str) -> None:
    """Its worker stood still between taking and claiming it; requeued by RQ, it is claimed again."""
    taken_from(queue)
    raw.hset("rq:job:j", "status", status)
    assert fence_of(raw, "a").claim("j") == Claim("over", 0)
    assert not raw.exists(keys.fence("j"), keys.lease("j"))
    raw.hset("rq:job:j", "status", "queued")
    assert fence_of(raw, "a").claim("j") == Claim("claimed", 1)


def test_a_dead_job_is_taken_back_to_the_front(raw: Redis, connection: Redis, queue: Queue) -> None:
    """Its death stays counted, and the next attempt supersedes it should it wake up."""
    place = taken_from(queue)
    old = claimed(raw, "a")
    queue.enqueue("worker.jobs.train", PAYLOAD, job_id="x")
    assert take_back(raw, "j", place, lease="a 0")
    assert queue.get_job_ids() == ["j", "x"]
    assert connection.hmget("rq:job:j", "status", "retries_left") == ["queued", "2"]
    see_that_it_is_no_longer_taken(queue)
    assert connection.hget(keys.fence("j"), "deaths") == "1"
    assert fence_of(raw, "b").claim("j") == Claim("claimed", 2)
    with pytest.raises(Superseded):
        old.beat(further=False)


@pytest.mark.parametrize("seen", ["", "a 0", "a", "b 1"])
def test_a_job_that_lives_is_not_taken_back(raw: Redis, queue: Queue, seen: str) -> None:
    """Its lease is no longer what the watcher saw: nothing is written."""
    place = taken_from(queue)
    claimed(raw, "a").beat(further=False)
    before = everything(raw)
    assert not take_back(raw, "j", place, lease=seen)
    assert everything(raw) == before


def test_one_execution_is_taken_back_and_not_the_other(raw: Redis, queue: Queue) -> None:
    """RQ may hold a job for running twice; the other entry is for its own watcher to judge."""
    place = taken_from(queue, "one")
    raw.zadd(queue.started_job_registry.key, {"j:two": 1, "k:one": 1})
    raw.hset("rq:execution:j:two", "worker_name", "w")
    assert take_back(raw, "j", place, lease="")
    assert raw.zrange(queue.started_job_registry.key, 0, -1) == [b"j:two", b"k:one"]
    assert raw.exists("rq:execution:j:two")


def test_stepping_aside_leaves_the_other_attempt_alone(raw: Redis, connection: Redis, queue: Queue) -> None:
    """Its lease and fence stay as they are, the job goes behind all others, and its status is not touched."""
    place = taken_from(queue, "mine")
    runs = claimed(raw, "other")
    queue.enqueue("worker.jobs.train", PAYLOAD, job_id="x")
    fenced = connection.hgetall(keys.fence("j"))
    step_aside(raw, place)
    step_aside(raw, place)
    assert lease_of(raw, "j") == "other 0"
    assert connection.hgetall(keys.fence("j")) == fenced
    assert queue.get_job_ids() == ["x", "j"]
    assert connection.hget("rq:job:j", "status") == "started"
    see_that_it_is_no_longer_taken(queue)
    assert runs.beat(further=False).cancelled is False


# --- the end


def test_rest_ends_the_attempt(raw: Redis, connection: Redis) -> None:
    """Lease and cancellation are gone, the deaths forgotten; asked twice, it is the same."""
    fence = claimed(raw, "a")
    raw.set(keys.cancel("j"), "1")
    for _ in range(2):
        fence.rest()
        assert connection.keys() == [keys.fence("j")]
        assert connection.hgetall(keys.fence("j")) == {"attempt": "1", "owner": "a", "deaths": "0", "request": "r"}


def test_a_full_redis_kills_no_attempt(raw: Redis, queue: Queue, full: Callable[[], None]) -> None:
    """A lease is renewed, an attempt ended and a job put back where Redis takes nothing that needs memory."""
    place = taken_from(queue)
    fence = claimed(raw, "a")
    raw.pexpire(keys.lease("j"), LEASE_MS // 2)
    full()
    assert fence.beat(further=True).cancelled is False
    assert lease_of(raw, "j") == "a 1"
    assert raw.pttl(keys.lease("j")) > LEASE_MS // 2
    fence.hand_back(place, front=True)
    assert queue.get_job_ids() == ["j"]
    fence.beat(further=False)
    assert take_back(raw, "j", place, lease="a 2")
    fence.beat(further=False)
    fence.rest()
    assert lease_of(raw, "j") == ""


# --- any order of it all


@dataclass
class Attempt:
    """One execution as this test knows it."""

    fence: Fence
    number: int = 0
    """As it was claimed; 0 before."""
    said: int = 0
    """Events that it has made."""
    taken: int = 0
    """Those that it knows to be in Redis."""


What = Literal["claim", "die", "beat", "say", "say, no answer", "repeat", "hand back", "rest", "take back", "aside"]
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(
            (
                "claim",
                "claim",
                "die",
                "beat",
                "say",
                "say, no answer",
                "repeat",
                "hand back",
                "rest",
                "take back",
                "aside",
            )
        ),
    ),
    max_size=40,
)


@hypothesis_settings(max_examples=300)
@given(steps=STEPS)
def test_only_the_newest_attempt_is_heard(redis_url: str, steps: list[tuple[int, What]]) -> None:
    """Three executions in any order: one that a newer has followed changes nothing, and no event is lost or doubled."""
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
                free = lease_of(raw, "j") == ""
                claim = one.fence.claim("j", deaths_allowed=1000)  # how often it dies is not what this is about
                mine = lease_of(raw, "j").startswith(f"w{who} ")
                assert (claim.word == "claimed") == (free or mine)
                if free:
                    newest += 1
                    executions[who] = Attempt(one.fence, newest)
                if mine:
                    assert claim.number == newest
            case "die":
                die(raw)
            case "take back":
                take_back(raw, "j", place, lease=lease_of(raw, "j"))
            case "aside":
                lease = lease_of(raw, "j")
                step_aside(raw, place)
                assert lease_of(raw, "j") == lease
            case _ if one.number == 0:
                continue
            case _ if one.number < newest:
                event("superseded")
                act(one, what, place, superseded=True)
                assert everything(raw) == before
            case _:
                act(one, what, place, superseded=False)
        assert raw.llen(queue.key) <= 1
    heard = said_in(connection, keys.events("j"))
    assert heard == sorted(heard)
    for number in range(1, newest + 1):
        seqs = [seq for attempt, seq in heard if attempt == number]
        assert seqs == list(range(1, len(seqs) + 1))
    for one in executions:
        assert one.taken <= len([0 for attempt, _ in heard if attempt == one.number]) <= one.said


def act(one: Attempt, what: What, place: Place, *, superseded: bool) -> None:
    """Have an attempt do something, once it is known whether a newer one has followed."""
    if what == "hand back":
        one.fence.hand_back(place, front=True)
    elif what == "rest":
        one.fence.rest()
    elif superseded:
        with pytest.raises(Superseded):
            say(one, what)
    else:
        say(one, what)


def say(one: Attempt, what: What) -> None:
    if what == "beat":
        one.fence.beat(further=False)
        return
    if what != "repeat":
        one.said += 2
    sent = range(1 if what == "repeat" else one.taken + 1, one.said + 1)
    last = published(one.fence, [entry(progress(seq, one.number)) for seq in sent], before=one.taken)
    assert last is not None
    if what != "say, no answer":
        one.taken = last
