"""Defects that the fuzzers have found, smallest first."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_redis import Fault
from redis import Redis
from stages import Behaviour
from support.worker.services import wait_until
from world import Options, World

from preflight.redis.server.embedded import redis_server


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with redis_server() as url:
        world = World(url, tmp_path / "world")
        yield world
        world.close()


def test_a_job_without_result_ttl_finishes_after_a_death(world: World) -> None:
    """Ids of executions that were deleted made RQ's delete() raise: `done` rounds without an end."""
    world.enqueue_by_rq("die once", Options(result_ttl=0))
    assert world.drain() == []


@pytest.mark.parametrize("retries", [0, 1])
def test_a_job_without_failure_ttl_fails_once(world: World, retries: int) -> None:
    """It was run three times and put into quarantine: RQ had deleted the hash that was asked for its status."""
    world.enqueue_by_rq("fail", Options(failure_ttl=0, retries=retries))
    assert world.drain() == []


def test_results_of_a_failed_job_have_a_time_to_live(world: World) -> None:
    world.enqueue_by_rq("fail", Options())
    assert world.drain() == []


def test_a_job_cancelled_in_the_queue_has_a_time_to_live(world: World) -> None:
    world.enqueue("finish", ensure=False)
    world.cancel(0)
    assert world.drain() == []


@pytest.mark.sampled(8)
@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER])
@pytest.mark.parametrize("commands", range(10))
def test_no_lost_answer_ends_a_starting_worker(world: World, fault: Fault, commands: int) -> None:
    """RQ's constructor asks Redis for its clients, and raised when the connection broke there."""
    world.start_worker("worker", fault, commands)
    wait_until(lambda: world.workers[0].traps.came("worker") > 0)
    assert world.drain() == []


def test_a_job_that_kills_its_workers_is_quarantined_once(world: World) -> None:
    """The reaper mistook one execution for the next, and a worker continued a quarantined job."""
    for _ in range(4):
        world.enqueue("die", ensure=False)
    for _ in range(3):
        world.start_worker()
    assert world.drain() == []


def suspend_beside_another(world: World, commands: int) -> None:
    """Suspend a supervisor before one of its commands until the job has failed in another worker."""
    world.start_worker("supervisor", Fault.STOP_BEFORE, commands)
    wait_until(lambda: world.workers[0].traps.came("supervisor") > 0)
    world.start_worker()
    wait_until(lambda: world.client.status("j0").status == "failed")
    assert world.drain() == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("commands", range(6))
def test_a_suspended_worker_quarantines_no_job_that_another_has_quarantined(world: World, commands: int) -> None:
    """The job's failure was published by both."""
    world.enqueue("die", ensure=False)
    world.connection.hset("preflight:{j0}:fence", "deaths", 3)
    suspend_beside_another(world, commands)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("commands", range(12))
def test_a_suspended_worker_runs_no_job_that_has_failed_meanwhile(world: World, commands: int) -> None:
    """It was suspended before its claim, which is the third command, or before its run, which follows the twelfth."""
    world.enqueue("fail", ensure=False)
    suspend_beside_another(world, commands)
    assert len(world.runs()) == 2  # the plain job's is one


def corrupt_by_string(connection: Redis, key: str) -> None:
    connection.delete(key)
    connection.set(key, "x", ex=1000)


@pytest.mark.parametrize("behaviour", ["finish late", "fail late"])
def test_a_registry_broken_while_a_job_runs_gets_its_end_nevertheless(world: World, behaviour: Behaviour) -> None:
    """The script stopped half-way, and its repetition found nothing to do: no time to live, no registry."""
    world.enqueue(behaviour, ensure=False)
    world.start_worker()
    wait_until(lambda: len(world.runs()) == 1)
    for registry in ("finished", "failed"):
        corrupt_by_string(world.connection, f"rq:{registry}:preflight")
    assert world.drain() == []
    assert world.connection.type("rq:finished:preflight") == b"zset"
