"""The registry cleaner on a real Redis: what is removed, what stays, and how much is done per step."""

import pickle
import time
from collections.abc import Callable
from typing import Final

import pytest
from redis import Redis
from redis.exceptions import ConnectionError
from rq import Callback, Queue
from rq.job import Job
from rq.serializers import JSONSerializer
from structlog.testing import capture_logs
from support.worker.services import RunWorker, digits_job

from preflight import Client
from preflight.redis import keys
from preflight.redis.replies import text
from worker.config.settings import Settings
from worker.queue.maintenance import registry_cleaner
from worker.queue.maintenance.registry_cleaner import CLEANING_INTERVAL, PAGE, RegistryCleaner

TTL: Final = 1000
REGISTRIES: Final = ("finished", "failed", "canceled", "deferred", "scheduled")
WORKERS: Final = "rq:workers:preflight"


@pytest.fixture
def run_round(queue: Queue) -> Callable[[], int]:
    """Run a whole round and return its number of steps."""

    def run() -> int:
        queue.connection.delete(keys.maintenance("preflight"))
        return all_steps(RegistryCleaner(queue.connection, queue, "w", ttl=TTL))

    return run


def all_steps(maintenance: RegistryCleaner) -> int:
    steps = 0
    while maintenance.due():
        maintenance.step()
        steps += 1
    return steps


def enter(raw: Redis, registry: str, job_id: str, score: float, *, hash_ttl: int | None = 600) -> None:
    """Add an entry to a registry; with the hash of its job, unless `hash_ttl` is 0."""
    raw.zadd(f"rq:{registry}:preflight", {job_id: score})
    if hash_ttl != 0:
        raw.hset(f"rq:job:{job_id}", "status", registry)
        if hash_ttl is not None:
            raw.expire(f"rq:job:{job_id}", hash_ttl)


def entries(raw: Redis, registry: str) -> list[str]:
    return [text(entry) for entry in raw.zrange(f"rq:{registry}:preflight", 0, -1)]


def test_expired_entries_are_removed(raw: Redis, run_round: Callable[[], int]) -> None:
    """Scores of -1 and inf never expire."""
    now = time.time()
    for registry in REGISTRIES:
        enter(raw, registry, f"{registry}-over", now - 10)
        enter(raw, registry, f"{registry}-kept", now + 60)
        enter(raw, registry, f"{registry}-inf", float("inf"), hash_ttl=None)
        enter(raw, registry, f"{registry}-minus", -1, hash_ttl=None)
    run_round()
    for registry in ("finished", "failed"):
        assert sorted(entries(raw, registry)) == [f"{registry}-inf", f"{registry}-kept", f"{registry}-minus"]
    for registry in ("canceled", "deferred", "scheduled"):  # scored by the time of something else
        assert len(entries(raw, registry)) == 4


def test_entries_of_deleted_jobs_are_removed(raw: Redis, run_round: Callable[[], int]) -> None:
    for registry in REGISTRIES:
        enter(raw, registry, f"{registry}-gone", time.time() + 60, hash_ttl=0)
        enter(raw, registry, f"{registry}-there", time.time() + 60)
        raw.zadd(f"rq:{registry}:preflight", {b"\xff\x00 gone": time.time() + 60})
    raw.zadd("rq:wip:preflight", {"gone:execution": 1})  # the reaper's affair
    run_round()
    for registry in REGISTRIES:
        assert entries(raw, registry) == [f"{registry}-there"]
    assert entries(raw, "wip") == ["gone:execution"]


def test_no_job_is_run_moved_or_unpickled(raw: Redis, run_round: Callable[[], int]) -> None:
    bomb = Job.create("os.abort", connection=raw, on_failure=Callback("os.abort"), id="bomb")
    bomb.save()
    raw.hset("rq:job:bomb", "data", pickle.dumps(("os.abort", None, (), {})))
    for registry in (*REGISTRIES, "wip"):
        entry = "bomb:execution" if registry == "wip" else "bomb"
        raw.zadd(f"rq:{registry}:preflight", {entry: 1 if registry in ("wip", "scheduled", "deferred") else 1e10})
    raw.hset("rq:job:bomb", "status", "canceled")
    before = {key: raw.dump(key) for key in raw.scan_iter()}
    run_round()
    assert {key: raw.dump(key) for key in raw.scan_iter() if key != keys.maintenance("preflight").encode()} == before
    assert raw.llen("rq:queue:preflight") == 0
    assert raw.ttl("rq:job:bomb") == -1


def test_results_and_cancel_keys_expire_with_their_job(raw: Redis, run_round: Callable[[], int]) -> None:
    for job_id, hash_ttl in (("short", 50), ("kept", None), ("gone", 0)):
        enter(raw, "failed", job_id, time.time() + 60, hash_ttl=hash_ttl)
        raw.xadd(f"rq:results:{job_id}", {"type": "2"})
        raw.hset(keys.cancel(job_id), "by", "a producer")
    enter(raw, "finished", "own", time.time() + 60)
    raw.xadd("rq:results:own", {"type": "1"})
    raw.expire("rq:results:own", 7)
    run_round()
    assert 40 < raw.ttl("rq:results:short") <= 50
    assert raw.ttl("rq:results:kept") == -1
    assert TTL - 10 < raw.ttl("rq:results:gone") <= TTL
    assert raw.ttl("rq:results:own") <= 7
    assert all(TTL - 10 < raw.ttl(keys.cancel(job_id)) <= TTL for job_id in ("short", "kept", "gone"))


def test_a_job_cancelled_by_rq_expires(raw: Redis, client: Client, queue: Queue, run_round: Callable[[], int]) -> None:
    """Jobs of other functions are left alone."""
    client.enqueue(digits_job(job_id="ours"))
    client.enqueue(digits_job(job_id="again"))
    queue.enqueue("os.getcwd", job_id="theirs")
    for job_id in ("ours", "theirs", "again"):
        Job.fetch(job_id, connection=raw, serializer=JSONSerializer).cancel()
    raw.hset("rq:job:again", "status", "queued")  # somebody has enqueued it again
    assert raw.ttl("rq:job:ours") == -1
    run_round()
    assert TTL - 10 < raw.ttl("rq:job:ours") <= TTL
    assert raw.ttl("rq:job:theirs") == raw.ttl("rq:job:again") == -1
    assert len(entries(raw, "canceled")) == 3


def test_keys_of_a_job_cancelled_in_the_queue_expire(raw: Redis, client: Client) -> None:
    client.enqueue(digits_job(job_id="j"))
    assert client.cancel("j")
    assert raw.ttl("rq:job:j") > 0
    assert {key for key in raw.keys("*j*") if raw.ttl(key) == -1} == set()


def test_killed_workers_are_removed(raw: Redis, run_round: Callable[[], int]) -> None:
    raw.hset("rq:worker:lives", "state", "idle")
    raw.sadd(WORKERS, "rq:worker:lives", "rq:worker:killed", "somebody:else", b"\xff")
    raw.sadd("rq:workers", "rq:worker:lives", "rq:worker:killed", "rq:worker:of-another-queue")
    raw.set("somebody:else", "1")
    run_round()
    assert raw.smembers(WORKERS) == {b"rq:worker:lives"}
    assert raw.smembers("rq:workers") == {b"rq:worker:lives", b"rq:worker:of-another-queue"}
    assert raw.get("somebody:else") == b"1"


@pytest.mark.slow
def test_a_step_reads_one_page_of_100_000_entries(raw: Redis, queue: Queue) -> None:
    pipe = raw.pipeline(transaction=False)
    for first in range(0, 100_000, 1000):
        numbers = range(first, first + 1000)
        pipe.zadd("rq:finished:preflight", {f"job-{number}": 1e10 for number in numbers})
        for number in numbers[::2]:
            pipe.set(f"rq:job:job-{number}", "")
    pipe.execute()
    raw.config_resetstat()
    maintenance = RegistryCleaner(raw, queue, "w", ttl=TTL)
    steps, looked_at, most = 0, 0, 0
    while maintenance.due():
        maintenance.step()
        asked = int(raw.info("commandstats").get("cmdstat_ttl", {"calls": 0})["calls"])
        steps, looked_at, most = steps + 1, asked, max(most, asked - looked_at)
    assert raw.zcard("rq:finished:preflight") == 50_000
    assert most <= 3 * 2 * PAGE  # three keys an entry; ZSCAN may return some more than it is asked for
    assert steps >= 100_000 / (2 * PAGE)


def test_workers_take_turns(raw: Redis, queue: Queue) -> None:
    """A key of another type does not prevent it."""
    first, second = (RegistryCleaner(raw, queue, name, ttl=TTL) for name in ("first", "second"))
    assert all_steps(first) > 1
    enter(raw, "finished", "gone", 1e10, hash_ttl=0)
    assert all_steps(second) == 1
    assert entries(raw, "finished") == ["gone"]
    assert raw.get(keys.maintenance("preflight")) == b"first"
    assert 0 < raw.ttl(keys.maintenance("preflight")) <= CLEANING_INTERVAL
    raw.delete(keys.maintenance("preflight"))
    raw.sadd(keys.maintenance("preflight"), "x")
    all_steps(RegistryCleaner(raw, queue, "third", ttl=TTL))
    assert entries(raw, "finished") == []
    assert raw.get(keys.maintenance("preflight")) == b"third"


@pytest.mark.parametrize("spoiled", [f"rq:{name}:preflight" for name in REGISTRIES] + [WORKERS, "rq:workers"])
def test_a_registry_of_another_type_is_logged_once_and_skipped(raw: Redis, queue: Queue, spoiled: str) -> None:
    for registry in REGISTRIES:
        enter(raw, registry, "gone", 1e10, hash_ttl=0)
    raw.sadd(WORKERS, "rq:worker:killed")
    raw.delete(spoiled)
    raw.set(spoiled, "x")
    maintenance = RegistryCleaner(raw, queue, "w", ttl=TTL)
    with capture_logs() as log:
        all_steps(maintenance)
        maintenance._next_round = 0.0
        raw.delete(keys.maintenance("preflight"))
        all_steps(maintenance)
    assert raw.get(spoiled) == b"x"
    left = {key.decode() for key in raw.scan_iter()} - {spoiled, keys.maintenance("preflight")}
    assert left == set()
    said = [line["key"] for line in log if line["event"] == "registry_not_maintained"]
    assert said == ([] if spoiled == "rq:workers" else [spoiled])


def test_missing_permissions_do_not_stop_the_worker(raw: Redis, settings: Settings) -> None:
    raw.acl_setuser("poor", enabled=True, nopass=True, keys=["*"], commands=["+@read", "+@connection"])
    poor = Redis.from_url(settings.redis_url, username="poor", password="x")  # noqa: S106 - any will do
    assert all_steps(RegistryCleaner(poor, Queue("preflight", connection=poor), "w", ttl=TTL)) == 1
    raw.acl_deluser("poor")


def test_a_step_is_repeated_after_an_error_of_redis(raw: Redis, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(raw, "finished", "gone", 1e10, hash_ttl=0)
    maintenance = RegistryCleaner(raw, queue, "w", ttl=TTL)
    with monkeypatch.context() as patch:
        patch.setattr(registry_cleaner, "read_page", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("away")))
        with pytest.raises(ConnectionError):
            maintenance.step()
    assert maintenance.due()
    all_steps(maintenance)
    assert entries(raw, "finished") == []


def test_dependents_of_ended_jobs_expire(raw: Redis, run_round: Callable[[], int]) -> None:
    """RQ adds them after the job's end, too; those of a job that waits stay."""
    for registry in ("failed", "canceled", "scheduled"):
        enter(raw, registry, registry, time.time() + 60)
        raw.sadd(f"rq:job:{registry}:dependents", "other")
    run_round()
    times = {registry: raw.ttl(f"rq:job:{registry}:dependents") for registry in ("failed", "canceled", "scheduled")}
    assert (times["scheduled"], min(times["failed"], times["canceled"]) > 0) == (-1, True)


def test_a_worker_cleans_registries_at_its_start(raw: Redis, run_worker: RunWorker) -> None:
    enter(raw, "finished", "gone", 1e10, hash_ttl=0)
    enter(raw, "failed", "over", 1)
    raw.sadd(WORKERS, "rq:worker:killed")
    raw.set("rq:scheduled:preflight", "x")
    worker = run_worker()
    assert entries(raw, "finished") == entries(raw, "failed") == []
    assert raw.smembers(WORKERS) == set()
    assert worker.output().count("wrong_type_key_renamed") == 1
