"""Every boundary between two commands of one job: a worker or its supervisor is killed, stopped or cut off there.

In random order, for as long as `budget` allows; an hour is enough for all of them.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest
from budget import BOUNDARIES_S, SEED, TIMEOUT_S
from faulty_redis import SLOTS, Fault, Role
from stages import Behaviour
from world import Options, World

from worker.embedded_redis import redis_server

COMMANDS: Final = 70
"""More than a worker sends for one job, and than its supervisor does."""
JOBS: Final[tuple[Behaviour, ...]] = ("finish", "fail", "fail for retry", "die once")
STANDS_S: Final = 0.9
"""Seconds for which what was stopped stands still: until another has taken over."""

NewWorld = Callable[[], World]


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[NewWorld]:
    """A function that makes an empty world."""
    made = iter(range(10**6))
    with redis_server() as url:
        yield lambda: World(url, tmp_path / str(next(made)))


def problems_at(world: World, role: Role, fault: Fault, commands: int, behaviour: Behaviour) -> str:
    """Return what is wrong after a fault at a boundary; empty where all is well."""
    try:
        world.enqueue(behaviour, ensure=False)
        world.enqueue_by_rq(behaviour, Options())
        world.start_worker(role, fault, commands)
        deadline = time.monotonic() + STANDS_S
        while not world.workers[0].traps.came(role) and time.monotonic() < deadline:
            time.sleep(0.005)
        if fault in (Fault.STOP_BEFORE, Fault.STOP_AFTER):
            world.start_worker()
            world.sleep(STANDS_S)
        problems = world.drain()
        return world.report(problems) if problems else ""
    finally:
        world.close()


@pytest.mark.timeout(TIMEOUT_S)
def test_a_fault_at_any_command_harms_no_job(new_world: NewWorld, capsys: pytest.CaptureFixture[str]) -> None:
    """One worker begins the jobs, the fault comes, and others end what it has left."""
    faults = [fault for fault in Fault if fault is not Fault.NONE]
    cases = [
        (role, fault, commands, behaviour)
        for role in SLOTS for fault in faults for commands in range(COMMANDS) for behaviour in JOBS
    ]  # fmt: skip
    deadline, count = time.monotonic() + BOUNDARIES_S, 0
    for case in Random(SEED).sample(cases, len(cases)):  # noqa: S311 - dice
        if time.monotonic() > deadline:
            break
        problems = problems_at(new_world(), *case)
        if problems:
            pytest.fail(f"FUZZ_SEED={SEED}: {case}\n{problems}", pytrace=False)
        count += 1
    with capsys.disabled():
        print(f"\nboundaries: FUZZ_SEED={SEED}, {count} of {len(cases)}", flush=True)
