"""Values, types and times that others put into Redis: none ends a worker, keeps the next job waiting or is signed."""

import json
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from redis import Redis
from redis.typing import EncodableT, FieldT
from rq import Queue
from support.worker.services import StartWorker, Worker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.client.retry import CannotRetry
from preflight.redis import keys
from preflight.redis.lua import script_source
from preflight.redis.replies import as_date
from preflight.wire import FUNCTION
from worker.admission import quarantine
from worker.config.settings import Settings

DEEP = "[" * 100_000
YEAR = 31_536_000
BUSY_WITHIN = 5.0
"""Seconds in which the next plain job is taken, whatever was written; usually a tenth of one."""
GIGABYTES_WITHIN = 20.0
"""The same where Redis has to move 200 MB to a worker that throws it away, and out of its lists; usually one second."""
MOST_MEMORY_KIB = 400 << 10
"""Of a worker's process, which has some 80 MiB; a container may have 1 GiB for it and the job."""
STORED = TypeAdapter(dict[bytes, bytes])
QUEUE = "preflight"
GROUP = {"PREFLIGHT_GROUP": "on"}
KEY = "a-signing-key-of-enough-letters"


def peak_kib(worker: Worker) -> int:
    """Return the largest memory that the worker's process has had, KiB."""
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def assert_next_job_is_taken(raw: Redis, client: Client, job_id: str, within: float = BUSY_WITHIN) -> None:
    client.enqueue(digits_job(job_id=job_id))
    wait_until(lambda: raw.hget(keys.rq_job(job_id), "status") in (b"started", b"finished"), within)
    assert wait_for(client, job_id).status == "finished"


def registered(raw: Redis, worker: Worker) -> bytes:
    """Wait until a worker is registered, and has looked around; return its key."""
    wait_until(lambda: raw.scard(f"rq:workers:{QUEUE}") == 1, 60)
    wait_until(lambda: bool(raw.exists(keys.maintainer(QUEUE, True, 0))), 30)
    assert worker.process.poll() is None, worker.output()
    (name,) = raw.smembers(f"rq:workers:{QUEUE}")
    return name if isinstance(name, bytes) else name.encode()


Put = Callable[[Redis], object]
Fields = dict[FieldT, EncodableT]


def short(job_id: str) -> Put:
    return lambda raw: raw.hset(keys.offers(QUEUE), job_id, "1 1 short")


OF_GROUPS: dict[str, Iterable[Put]] = {
    "bytes in an offer": [lambda raw: raw.hset(keys.offers(QUEUE), mapping={b"\xff": b"x", b"\xfe": b"1 1 short"})],
    "numbers in an offer": [
        lambda raw: raw.hset(keys.offers(QUEUE), mapping={"a": f"{'9' * 30} 1 short", "b": f"1 {'9' * 30} short"}),
        lambda raw: raw.hset(keys.offers(QUEUE), mapping={"c": f"1 {'9' * 14} short", "d/../e": "1 1 short"}),
    ],
    "a large offer": [lambda raw: raw.hset(keys.offers(QUEUE), mapping={"x" * (32 << 20): "1", "b": "1" * (32 << 20)})],
    "a flood of offers": [
        lambda raw: raw.hset(keys.offers(QUEUE), mapping={f"j{n}": "1 1 short" for n in range(20_000)}),
    ],
    "another type of fence": [lambda raw: raw.set(keys.fence("X"), "x"), short("X")],
    "another type of lease": [
        lambda raw: raw.hset(keys.fence("Y"), "attempt", 1), lambda raw: raw.rpush(keys.lease("Y"), "x"), short("Y"),
    ],
    "another type of group": [
        lambda raw: raw.hset(keys.fence("Z"), "attempt", 1), lambda raw: raw.set(keys.lease("Z"), "x"),
        lambda raw: raw.rpush(keys.group("Z"), "x"), short("Z"),
    ],
    "a group that says anything": [
        lambda raw: raw.hset(keys.fence("A"), "attempt", 1), lambda raw: raw.set(keys.lease("A"), "x"),
        lambda raw: raw.hset(keys.group("A"), mapping={
            "attempt": 1, "seats": 9, "led": "nan", "request": b"\xff- 1 " + DEEP[:9000].encode(), "seat:x": DEEP,
        }),
        short("A"),
    ],
    "another type of the idle": [
        lambda raw: raw.delete(keys.idle_workers(QUEUE)), lambda raw: raw.set(keys.idle_workers(QUEUE), "x", ex=300),
    ],
    "another type of offers": [
        lambda raw: raw.delete(keys.offers(QUEUE)), lambda raw: raw.set(keys.offers(QUEUE), "x"),
    ],
}  # fmt: skip


@pytest.mark.slow
def test_nothing_in_the_keys_of_groups_keeps_a_job_waiting(
    raw: Redis, client: Client, start_worker: StartWorker
) -> None:
    """A worker that looks for groups runs on, and so does one that is started with all of it there."""
    worker = start_worker(environment=GROUP)
    registered(raw, worker)
    for puts in OF_GROUPS.values():
        for put in puts:
            put(raw)
        time.sleep(0.3)  # the worker looks meanwhile
    assert_next_job_is_taken(raw, client, "first")
    assert worker.process.poll() is None, worker.output()
    assert peak_kib(worker) < MOST_MEMORY_KIB
    worker.stop()
    raw.flushall()
    for name, puts in OF_GROUPS.items():
        for put in puts if name != "another type of offers" else ():
            put(raw)
    other = start_worker(environment=GROUP)
    assert_next_job_is_taken_at_the_start(raw, client)
    assert other.process.poll() is None, other.output()
    assert not raw.hexists(keys.offers(QUEUE), b"\xff")


def assert_next_job_is_taken_at_the_start(raw: Redis, client: Client) -> None:
    wait_until(lambda: raw.scard(f"rq:workers:{QUEUE}") >= 1, 60)
    assert_next_job_is_taken(raw, client, "second")


def orphan(raw: Redis, rq_id: str, status: str) -> None:
    """Write a job as RQ does; it is in no queue yet."""
    request = digits_job(job_id=rq_id).model_dump(mode="json", exclude_unset=True)
    fields: Fields = {
        "data": json.dumps([FUNCTION, None, [request], {}]),
        "status": status,
        "origin": QUEUE,
        "timeout": "600",
    }
    raw.hset(keys.rq_job(rq_id), mapping=fields)


@pytest.mark.slow
def test_no_place_or_lock_is_respected_for_longer_than_ours(
    raw: Redis, client: Client, start_worker: StartWorker
) -> None:
    """Places for a year, or in the name of nobody; the scheduler's lock for a year, and of another type."""
    for number in range(3):
        ttl = YEAR if number else 20
        raw.set(keys.maintainer(QUEUE, True, number), f"host{number}.1.abcd", ex=ttl)
    raw.set(keys.rq_scheduler_lock(QUEUE), "nobody", ex=YEAR)
    raw.set(keys.maintenance(QUEUE), "nobody", ex=YEAR)
    orphan(raw, "orphan", "started")
    raw.zadd(f"rq:wip:{QUEUE}", {"orphan:0123": time.time() + 600})
    orphan(raw, "due", "scheduled")
    raw.zadd(f"rq:scheduled:{QUEUE}", {"due": time.time() - 5})
    start_worker()
    for job_id in ("due", "orphan"):
        wait_until(lambda: raw.hget(keys.rq_job(job_id), "status") == b"finished", 60)  # noqa: B023 - called now
    raw.delete(keys.rq_scheduler_lock(QUEUE))
    raw.rpush(keys.rq_scheduler_lock(QUEUE), "x")
    orphan(raw, "later", "scheduled")
    raw.zadd(f"rq:scheduled:{QUEUE}", {"later": time.time() - 5})
    wait_until(lambda: raw.hget(keys.rq_job("later"), "status") == b"finished", 60)
    assert client.status("later").status == "finished"


@pytest.mark.slow  # 200 MB, twice; tests/fuzz/test_every_key.py has smaller ones
def test_an_id_of_any_size_goes_into_quarantine_and_no_worker_holds_it(
    raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    """In the queue, among those taken, and in every registry; when a worker starts, and later."""
    large = b"x" * (200 << 20)
    raw.rpush(queue.key, large)
    raw.rpush(queue.intermediate_queue_key, large[: 2 << 20])
    raw.sadd(f"rq:workers:{QUEUE}", large[: 2 << 20])
    for registry in ("wip", "finished", "failed", "canceled", "deferred", "scheduled"):
        raw.zadd(f"rq:{registry}:{QUEUE}", {large[: 2 << 20]: time.time() - 1})
    raw.hset(keys.QUARANTINE, "x" * (2 << 20), "x" * (2 << 20))
    raw.hset(keys.ended(QUEUE), "x" * (2 << 20), "x" * (2 << 20))
    worker = start_worker()
    wait_until(lambda: raw.scard(f"rq:workers:{QUEUE}") >= 1, 60)
    assert_next_job_is_taken(raw, client, "second", GIGABYTES_WITHIN)
    raw.rpush(queue.key, large)
    assert_next_job_is_taken(raw, client, "third", GIGABYTES_WITHIN)
    for key in (queue.key, queue.intermediate_queue_key, f"rq:wip:{QUEUE}", f"rq:scheduled:{QUEUE}"):
        wait_until(lambda: not raw.exists(key), 20)  # noqa: B023 - called now
    reasons = {entry.reason for entry in quarantine.entries(raw).values()}
    assert "it has more than 1024 bytes, but an id has at most 64" in reasons
    assert peak_kib(worker) < MOST_MEMORY_KIB
    assert worker.process.poll() is None, worker.output()


@pytest.mark.slow
def test_no_field_or_value_of_any_size_reaches_a_worker(raw: Redis, client: Client, start_worker: StartWorker) -> None:
    """Of keys of a job before it is taken; the job is trained or quarantined, and the next one is taken."""
    large = b"x" * (32 << 20)
    puts: dict[str, Callable[[str], object]] = {
        "lease": lambda key: raw.set(keys.lease(key), large),
        "result": lambda key: raw.set(keys.result(key), large),
        "alias": lambda key: raw.set(keys.alias(key), large),
        "fence": lambda key: raw.hset(keys.fence(key), mapping={"failure": large, "owner": large, "deaths": large}),
        "state": lambda key: raw.hset(keys.state(key), mapping={"rq_id": large, "status": large, "request": DEEP}),
        "meta": lambda key: raw.hset(keys.rq_job(key), "meta", large),
    }
    for job_id, put in puts.items():
        client.enqueue(digits_job(job_id=job_id))
        put(job_id)
    worker = start_worker()
    channel = f"rq:pubsub:{registered(raw, worker).decode().removeprefix('rq:worker:')}"
    for command in (large, DEEP, "NaN", "[" * 500, b"\xff", '{"command": "stop-job", "job_id": 1e999}'):
        raw.publish(channel, command)
    assert_next_job_is_taken_last(raw, client)
    assert peak_kib(worker) < MOST_MEMORY_KIB
    assert worker.process.poll() is None, worker.output()


def assert_next_job_is_taken_last(raw: Redis, client: Client) -> None:
    wait_until(lambda: raw.llen(keys.rq_queue(QUEUE)) == 0 and not raw.exists(f"rq:wip:{QUEUE}"), 120)
    assert_next_job_is_taken(raw, client, "last")


def test_due_jobs_behind_a_long_queue_cost_redis_a_moment(raw: Redis) -> None:
    """A thousand took seven seconds of Redis behind 100,000: each was looked for in the queue."""
    pipe = raw.pipeline(transaction=False)
    pipe.rpush(keys.rq_queue(QUEUE), *(f"{number:032x}" for number in range(100_000)))
    for number in range(1000):
        pipe.hset(keys.rq_job(f"due{number}"), "status", "scheduled")
        pipe.zadd(f"rq:scheduled:{QUEUE}", {f"due{number}": time.time() - 1})
    pipe.execute()
    script = raw.register_script(script_source("scheduling/enqueue_due"))
    began = time.monotonic()
    held, enqueued = script(
        keys=[keys.rq_scheduler_lock(QUEUE), keys.rq_queue(QUEUE), f"rq:scheduled:{QUEUE}", keys.rq_ready(QUEUE)],
        args=["w", 10_000, 122_000, as_date(time.time()), 1000],
    )  # fmt: skip
    assert time.monotonic() - began < 1
    assert (held, enqueued, raw.zcard(f"rq:scheduled:{QUEUE}")) == (1, 1000, 0)
    assert raw.llen(keys.rq_queue(QUEUE)) == 101_000


def test_a_status_written_over_a_running_job_loses_it_at_no_redeploy(
    raw: Redis, queue: Queue, client: Client, start_worker: StartWorker
) -> None:
    """It goes back into its queue, and ends as it would have; its records have times to live."""
    client.enqueue(digits_job(job_id="long", epochs=10_000))
    worker = start_worker()
    assert any(event.type == "progress" for event in client.events("long", timeout=60))
    raw.hset(keys.rq_job("long"), "status", "finished")
    wait_until(lambda: raw.hget(keys.rq_job("long"), "status") == b"started", 30)  # its worker knows better
    raw.hset(keys.rq_job("long"), "status", "failed")
    worker.stop()
    assert queue.get_job_ids() == ["long"]
    assert client.status("long").status == "queued"
    start_worker()
    wait_until(lambda: raw.hget(keys.rq_job("long"), "status") == b"started", 60)
    raw.hset(keys.rq_job("long"), "status", "stopped")
    client.cancel("long")
    wait_until(lambda: client.status("long").status == "cancelled", 60)
    wait_until(lambda: raw.zscore(f"rq:failed:{QUEUE}", "long") is not None, 30)
    assert raw.ttl(keys.rq_job("long")) > 0


def test_a_retry_signs_nothing_that_was_not_signed(
    raw: Redis, queue: Queue, settings: Settings, start_worker: StartWorker
) -> None:
    """An unsigned job, another payload, other limits, and an earlier message of the same job are refused."""
    client = Client(settings.redis_url, signing_key=KEY)
    start_worker(environment={"PREFLIGHT_SIGNING_KEY": KEY, "PREFLIGHT_MAX_EPOCHS": "2"})
    orphan(raw, "forged", "queued")
    raw.rpush(queue.key, "forged")
    assert wait_for(client, "forged").field == "signature"
    client.enqueue(digits_job(job_id="theirs", epochs=3))
    assert wait_for(client, "theirs").field == "epochs"
    stored = STORED.validate_python(raw.hgetall(keys.rq_job("theirs")))
    earlier: Fields = {name: value for name, value in stored.items()}  # noqa: C416 - dict() would keep the narrower type
    data = stored[b"data"]
    request = digits_job(job_id="theirs", epochs=1).model_dump(mode="json", exclude_unset=True)
    swapped = json.dumps([FUNCTION, None, [request], json.loads(zlib.decompress(data))[3]])
    attempts: tuple[tuple[str, Fields], ...] = (
        ("forged", {}),
        ("theirs", {"data": swapped}),
        ("theirs", {"timeout": "-1"}),
        ("theirs", {"result_ttl": "-1"}),
        ("theirs", {"data": json.dumps([FUNCTION, None, [request], {}])}),
    )
    for job_id, changes in attempts:
        if job_id == "theirs":
            raw.hset(keys.rq_job(job_id), mapping={**earlier, **changes})
        with pytest.raises(CannotRetry):
            client.retry(job_id)
    raw.hset(keys.rq_job("theirs"), mapping=earlier)
    client.retry("theirs")
    assert wait_for(client, "theirs").field == "epochs"
    raw.hset(keys.rq_job("theirs"), "data", data)  # a worker has accepted a later one
    raw.hdel(keys.accepted("theirs"), f"carrier:{json.loads(zlib.decompress(data))[3]['signature']}")
    with pytest.raises(CannotRetry, match="not the last one"):
        client.retry("theirs")
