"""Seats in a real Redis: who may take one, who keeps it, who loses it."""

import pytest
from redis import Redis
from rq import Queue

from preflight.redis import keys
from worker.broker.fencing import Fence, Superseded
from worker.config.settings import Settings
from worker.features.groups.seating import Seating
from worker.features.groups.seats import Instruction, LeaderSeats, MemberSeat, Offer, read_offers
from worker.jobs.worker_context import WorkerContext
from worker.queue.loop.idle_host import IdleHost
from worker.queue.standby import Standby
from worker.state.control import StopSignal

QUEUE = "preflight"
REQUEST = "- {}"


def claimed(raw: Redis, job_id: str, owner: str) -> Fence:
    fence = Fence(raw, job_id, owner, ttl=60, request="r")
    assert fence.claim(job_id).status == "claimed"
    return fence


def leading(raw: Redis, job_id: str = "job", owner: str = "leader/1") -> LeaderSeats:
    return LeaderSeats(raw, QUEUE, claimed(raw, job_id, owner), ttl=60)


def seat(raw: Redis, offer: Offer, worker: str) -> MemberSeat:
    return MemberSeat(raw, QUEUE, offer, worker)


def seated(raw: Redis) -> tuple[LeaderSeats, MemberSeat]:
    """Return the seats of a group that has begun, and that of a worker who has sat down."""
    seats = leading(raw)
    seats.lead(1, REQUEST, "open", [])
    (offer,) = read_offers(raw, QUEUE, "a")
    mine = seat(raw, offer, "a")
    mine.sit("hello")
    return seats, mine


def test_an_idle_worker_sits_down_and_follows_orders(raw: Redis) -> None:
    seats = leading(raw)
    assert read_offers(raw, QUEUE, "member") == []
    led = seats.lead(1, REQUEST, "short", [])
    assert (led.waiting, led.idle, led.older_is_short, list(led.seats)) == (0, 1, False, [])
    (offer,) = read_offers(raw, QUEUE, "member")
    assert (offer.job_id, offer.attempt, offer.short) == ("job", 1, True)
    mine = seat(raw, offer, "member")
    assert mine.sit("hello") == ("taken", REQUEST)
    assert seat(raw, offer, "other").sit("hello") == ("full", "")
    led = seats.lead(1, REQUEST, "open", [Instruction("member", "come", "stays")])
    assert [(each.worker, each.sealed) for each in led.seats] == [("member", "hello")]
    assert led.idle == 0
    assert read_offers(raw, QUEUE, "other") == []  # no seat is free
    assert mine.beat("ready")[:2] == ("seated", "come")
    assert seats.lead(1, REQUEST, "open", []).seats[0].sealed == "ready"
    mine.leave()
    assert seats.lead(1, REQUEST, "open", []).seats == []


def test_who_was_let_go_does_not_come_back(raw: Redis) -> None:
    seats = leading(raw)
    seats.lead(2, REQUEST, "open", [])
    (offer,) = read_offers(raw, QUEUE, "a")
    for name in ("a", "b"):
        assert seat(raw, offer, name).sit("hello")[0] == "taken"
    seats.lead(2, REQUEST, "open", [Instruction("a", "go", "leaves"), Instruction("b", "go", "refused")])
    for name in ("a", "b"):
        assert seat(raw, offer, name).beat("hello")[:2] == ("seated", "go")
    assert seats.lead(2, REQUEST, "open", []).seats == []
    assert seat(raw, offer, "b").sit("hello") == ("refused", "")
    assert seat(raw, offer, "a").sit("hello") == ("taken", REQUEST)
    assert seat(raw, offer, "a").beat("hello")[:2] == ("seated", "")


def test_who_was_silent_takes_the_seat_again(raw: Redis) -> None:
    seats = leading(raw)
    seats.lead(1, REQUEST, "open", [])
    (offer,) = read_offers(raw, QUEUE, "a")
    assert seat(raw, offer, "a").sit("hello")[0] == "taken"
    seats.lead(1, REQUEST, "open", [Instruction("a", "come", "stays"), Instruction("a", "", "forgotten")])
    assert seats.lead(1, REQUEST, "open", []).seats == []
    assert seat(raw, offer, "a").beat("hello")[:2] == ("seated", "come")
    assert [each.worker for each in seats.lead(1, REQUEST, "open", []).seats] == ["a"]


def test_a_dead_leader_offers_nothing(raw: Redis) -> None:
    """Its lease ends; the next attempt has a group of its own, and the late leader none."""
    seats = leading(raw)
    seats.lead(1, REQUEST, "open", [])
    (offer,) = read_offers(raw, QUEUE, "a")
    raw.delete(keys.lease("job"))
    assert seat(raw, offer, "a").sit("hello") == ("over", "")
    assert read_offers(raw, QUEUE, "a") == []
    newer = leading(raw, owner="second/1")
    newer.lead(1, REQUEST, "open", [])
    assert seat(raw, offer, "a").beat("hello")[0] == "over"
    assert seat(raw, offer, "a").sit("hello")[0] == "over"
    newer.lead(1, REQUEST, "open", [])
    with pytest.raises(Superseded):
        seats.lead(1, REQUEST, "open", [])
    seats.disband()
    assert len(read_offers(raw, QUEUE, "a")) == 1


def test_a_group_that_is_over_is_told_so(raw: Redis) -> None:
    seats, mine = seated(raw)
    seats.disband()
    assert mine.beat("hello")[0] == "over"
    assert read_offers(raw, QUEUE, "a") == []


def test_a_redis_that_lost_its_data_gets_the_group_back(raw: Redis) -> None:
    seats, mine = seated(raw)
    raw.flushall()
    assert mine.beat("hello")[0] == "lost"
    seats.lead(1, REQUEST, "open", [])
    assert mine.beat("hello")[0] == "seated"
    assert [each.worker for each in seats.lead(1, REQUEST, "open", []).seats] == ["a"]


def test_of_two_groups_that_are_short_the_older_one_goes_first(raw: Redis) -> None:
    older, younger = leading(raw, "b", "w1/1"), leading(raw, "a", "w2/1")
    older.lead(1, REQUEST, "short", [])
    raw.hset(keys.group("b"), "since", "1")
    assert not older.lead(1, REQUEST, "short", []).older_is_short
    assert younger.lead(1, REQUEST, "short", []).older_is_short
    assert [offer.job_id for offer in read_offers(raw, QUEUE, "w3")] == ["b", "a"]
    older.lead(1, REQUEST, "open", [])
    assert not younger.lead(1, REQUEST, "short", []).older_is_short


def test_garbage_among_the_offers_is_passed_over(raw: Redis) -> None:
    leading(raw).lead(1, REQUEST, "open", [])
    raw.hset(keys.offers(QUEUE), mapping={"x": "", "y": "1 2 run", "z": "-1 2 open", "u": "1 2 open 3"})
    assert [offer.job_id for offer in read_offers(raw, QUEUE, "a")] == ["job"]
    raw.hset(keys.offers(QUEUE), "ghost", "1 1 open")
    (ghost, _) = read_offers(raw, QUEUE, "a")
    assert seat(raw, ghost, "a").sit("hello") == ("over", "")


@pytest.mark.parametrize(("address", "idle"), [("127.0.0.1", 1), ("203.0.113.1", 0)])
def test_a_worker_without_a_usable_address_is_not_waited_for(
    raw: Redis, settings: Settings, address: str, idle: int
) -> None:
    """203.0.113.1 is kept for documentation (RFC 5737): no machine has it."""
    own = settings.model_copy(update={"group": "on", "advertise_host": address, "standby": "off"})
    worker = WorkerContext(raw, Queue(QUEUE, connection=raw), "me", own, StopSignal())
    seating = Seating(worker, IdleHost(worker, Standby(own), lambda _: True))
    seats = leading(raw)
    seats.lead(1, REQUEST, "short", [])
    seating.look(offered=True)
    assert seats.lead(1, REQUEST, "short", []).idle == idle
    assert seating.has_offer(short=True) == bool(idle)
