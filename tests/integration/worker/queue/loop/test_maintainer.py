"""Three workers maintain a queue for all; the places of dead ones are taken, and hosts share them."""

import pytest
from redis import Redis
from rq import Queue
from support.worker.services import StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.redis import keys
from worker.queue.loop import maintainer
from worker.queue.loop.maintainer import CLAIM_INTERVAL, MAINTAINERS, RENEWAL_INTERVAL, Maintainer


class Clock:
    """The maintainers' monotonic time, set by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(maintainer, "time", clock)
    return clock


def place(number: int, queue: str = "preflight") -> str:
    return keys.maintainer(queue, True, number)


def looks(raw: Redis, one: Maintainer) -> bool:
    """Have a worker look, as its idle loop does; returns whether it has something to maintain."""
    return one.look(raw.exists(*one.watched))


def made(raw: Redis, queue: Queue, *hosts: str) -> list[Maintainer]:
    """Return a worker on each host, each of which RQ knows and has looked once."""
    workers = [
        Maintainer(raw, queue, f"{host}.{number}.abcd", with_scheduler=True) for number, host in enumerate(hosts)
    ]
    for number, (host, worker) in enumerate(zip(hosts, workers, strict=True)):
        raw.hset(keys.rq_worker(f"{host}.{number}.abcd"), "queues", queue.name)
        looks(raw, worker)
    return workers


def test_three_maintain_and_the_next_takes_a_free_place(raw: Redis, queue: Queue) -> None:
    """One that has just become a maintainer looks at everything; later only where there is work."""
    workers = made(raw, queue, *"abcde")
    assert [worker.is_active for worker in workers] == [True] * MAINTAINERS + [False] * 2
    assert not any(looks(raw, worker) for worker in workers)
    workers[1].release()
    assert looks(raw, workers[4])
    assert not looks(raw, workers[3])
    raw.rpush(queue.intermediate_queue_key, "j")
    assert [looks(raw, worker) for worker in (workers[0], workers[2], workers[4], workers[3])] == [True] * 3 + [False]


def test_places_expire_and_are_renewed(raw: Redis, queue: Queue, clock: Clock) -> None:
    (worker,) = made(raw, queue, "a")
    assert 0 < raw.ttl(place(0)) <= maintainer.PLACE_SECONDS
    raw.expire(place(0), 1)
    clock.now += 2 * RENEWAL_INTERVAL
    looks(raw, worker)
    assert raw.ttl(place(0)) > 1


def test_a_maintainer_whose_place_was_taken_stands_down(raw: Redis, queue: Queue, clock: Clock) -> None:
    """It was suspended for longer than its place lasts."""
    (worker,) = made(raw, queue, "a")
    raw.set(place(0), "b.1.abcd", px=round(1000 * maintainer.PLACE_SECONDS))
    raw.rpush(queue.intermediate_queue_key, "j")
    clock.now += 2 * RENEWAL_INTERVAL
    assert not looks(raw, worker)
    assert not worker.is_active
    worker.release()
    assert raw.get(place(0)) == b"b.1.abcd"


@pytest.mark.parametrize(("hosts", "gets_one"), [("aaa", True), ("aba", False), ("bbb", False)])
def test_one_host_does_not_hold_all_places(raw: Redis, queue: Queue, clock: Clock, hosts: str, gets_one: bool) -> None:
    """A worker of another host, here `b`, gets the last of them."""
    made(raw, queue, *hosts)
    late = Maintainer(raw, queue, "b.9.abcd", with_scheduler=True)
    clock.now += 2 * CLAIM_INTERVAL
    looks(raw, late)
    assert late.is_active == gets_one


@pytest.mark.parametrize("kind", ["string without a time to live", "list"])
def test_a_key_that_is_no_place_is_taken(raw: Redis, queue: Queue, kind: str) -> None:
    for number in range(MAINTAINERS):
        if kind == "list":
            raw.rpush(place(number), "x")
        else:
            raw.set(place(number), f"{number}.1.x")
    (worker,) = made(raw, queue, "a")
    assert worker.is_active


def test_workers_without_a_scheduler_have_places_of_their_own(raw: Redis, queue: Queue) -> None:
    """Else they could hold all places, and nobody would enqueue scheduled jobs."""
    without = [Maintainer(raw, queue, f"{host}.1.x", with_scheduler=False) for host in "abc"]
    for worker in without:
        looks(raw, worker)
    assert made(raw, queue, "d")[0].is_active


def test_a_busy_maintainer_reclaims_jobs(raw: Redis, queue: Queue, client: Client, start_worker: StartWorker) -> None:
    """Of a worker that died between take and claim; the queue's only other worker trains meanwhile."""
    client.enqueue(digits_job(job_id="long", epochs=10_000))
    worker = start_worker()
    wait_for(client, "long", "running")
    client.enqueue(digits_job(job_id="lost"))
    assert raw.lmove(queue.key, queue.intermediate_queue_key, "LEFT", "RIGHT") == b"lost"
    wait_until(lambda: queue.get_job_ids() == ["lost"], 30)
    assert client.status("long").status == "running"
    worker.stop()


@pytest.mark.slow
def test_another_worker_maintains_after_kills(
    raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    """All maintainers are killed at once: the worker that is left takes a place, and reclaims."""
    first = [start_worker() for _ in range(MAINTAINERS)]
    wait_until(lambda: raw.exists(*map(place, range(MAINTAINERS))) == MAINTAINERS, 60)
    start_worker()
    wait_until(lambda: raw.scard("rq:workers") == MAINTAINERS + 1, 60)
    for worker in first:
        worker.process.kill()
    raw.delete(*map(place, range(MAINTAINERS)))  # as after `PLACE_SECONDS`
    client.enqueue(digits_job(job_id="lost", epochs=1))
    wait_until(lambda: wait_for(client, "lost").status == "finished", 60)
    raw.rpush(queue.intermediate_queue_key, "gone")
    wait_until(lambda: not raw.exists(queue.intermediate_queue_key), 60)
