"""Fuzzer of boundaries: a fault between any two commands of one job, in random order, as long as `budget` allows.

An hour is enough for all of them.
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

from preflight.redis.server.embedded import redis_server

COMMANDS: Final = 70
"""More than a worker sends for one job, and than its supervisor does."""
JOBS: Final[tuple[Behaviour, ...]] = ("finish", "fail", "fail for retry", "die once")
STANDS_S: Final = 0.9
"""Seconds for which what was stopped stands still: until another has taken over."""

Boundary = tuple[Role, Fault, int]
BOUNDARIES: Final[list[Boundary]] = [
    (role, fault, commands)
    for role in SLOTS for fault in Fault if fault is not Fault.NONE for commands in range(COMMANDS)
]  # fmt: skip
"""Who, what, and after how many commands."""

NewWorld = Callable[[], World]


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[NewWorld]:
    """Makes empty worlds."""
    made = iter(range(10**6))
    with redis_server() as url:
        yield lambda: World(url, tmp_path / str(next(made)))


def cases(random: Random) -> Iterator[tuple[Boundary, Behaviour]]:
    """Yield all boundaries in random order, each with a random job, without end."""
    while True:
        for boundary in random.sample(BOUNDARIES, len(BOUNDARIES)):
            yield boundary, random.choice(JOBS)


def problems_at(world: World, boundary: Boundary, behaviour: Behaviour) -> str:
    """Return the problems after a fault at a boundary."""
    role, fault, commands = boundary
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
    """One worker begins the jobs, the fault strikes, and other workers end them."""
    deadline, tried = time.monotonic() + BOUNDARIES_S, set()
    for boundary, behaviour in cases(Random(SEED)):  # noqa: S311 - dice
        problems = problems_at(new_world(), boundary, behaviour)
        if problems:
            pytest.fail(f"FUZZ_SEED={SEED}: {boundary}, {behaviour}\n{problems}", pytrace=False)
        tried.add(boundary)
        if time.monotonic() > deadline:
            break
    with capsys.disabled():
        print(f"\nboundaries: FUZZ_SEED={SEED}, {len(tried)} of {len(BOUNDARIES)}", flush=True)
