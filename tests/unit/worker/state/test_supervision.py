"""Supervision: a thread or a task that ends is started again, and its state says so."""

import asyncio
import threading
import time
from itertools import pairwise

import pytest
from support.worker.services import wait_until

from worker.state import supervision
from worker.state.supervision import Supervisor


class Faulty:
    """Ends a number of times, each time otherwise, then runs until it is let go."""

    def __init__(self, ends: int) -> None:
        self.left = ends
        self.released = threading.Event()

    def step(self) -> bool:
        """Raise or return True, where it is to end."""
        if not self.left:
            return False
        self.left -= 1
        if self.left % 3 == 2:
            raise RecursionError("too \N{SNOWMAN} deep")
        if self.left % 3 == 1:
            raise MemoryError
        return True

    def run(self) -> None:
        if not self.step():
            self.released.wait(20)

    async def run_async(self) -> None:
        if not self.step():
            await asyncio.to_thread(self.released.wait, 20)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_SECONDS", 0.01)


def test_a_thread_that_ends_is_started_again() -> None:
    """After an exception of any kind, and after a return; then it shows as recovering."""
    supervisor, faulty = Supervisor(), Faulty(ends=3)
    thread = supervisor.start_thread("reader", faulty.run)
    wait_until(lambda: supervisor.states()[0].restarts == 3 and supervisor.states()[0].state == "recovering")
    (state,) = supervisor.states()
    assert (state.name, state.error) == ("reader", "it returned")
    supervisor.close()
    faulty.released.set()
    thread.join(20)
    assert not thread.is_alive()
    assert supervisor.states()[0].state == "ended"


def test_a_task_that_ends_is_started_again() -> None:
    async def watch() -> None:
        supervisor, faulty = Supervisor(), Faulty(ends=2)
        task = supervisor.start_task("reader", faulty.run_async)
        for _ in range(2000):
            await asyncio.sleep(0.01)
            (state,) = supervisor.states()
            if state.state == "recovering":
                break
        assert (state.state, state.restarts) == ("recovering", 2)
        assert state.error == "it returned"
        supervisor.close()
        faulty.released.set()
        await asyncio.wait_for(task, 20)

    asyncio.run(watch())


def test_a_cancelled_task_ends() -> None:
    async def watch() -> None:
        supervisor, faulty = Supervisor(), Faulty(ends=0)
        task = supervisor.start_task("reader", faulty.run_async)
        await asyncio.sleep(0.01)
        assert supervisor.states()[0].state == "running"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        faulty.released.set()

    asyncio.run(watch())


def test_a_part_that_never_runs_for_long_is_tried_again_without_end() -> None:
    """The error is one line of ASCII, as it may come from Redis."""
    supervisor, faulty = Supervisor(), Faulty(ends=1_000_000)
    supervisor.start_thread("reader", faulty.run)
    errors: set[str | None] = set()

    def has_ended_often() -> bool:
        errors.update(state.error for state in supervisor.states())
        return supervisor.states()[0].restarts >= 5

    wait_until(has_ended_often)
    supervisor.close()
    assert errors <= {None, "it returned", "MemoryError", "RecursionError: too \\u2603 deep"}


def test_a_step_that_fails_is_taken_again_later_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on with what it gets instead; once the step succeeds, it is taken each time."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    parts = Supervisor()
    taken: list[float] = []

    def fails() -> int:
        taken.append(now[0])
        raise KeyError("x")

    for _ in range(600):
        assert parts.step("reading", fails, -1) == -1
        now[0] += 0.1
    gaps = [later - earlier for earlier, later in pairwise(taken)]
    assert 4 < len(taken) < 20
    assert max(gaps[-2:]) > 4 * max(gaps[:2])
    (state,) = parts.states()
    assert (state.name, state.state, state.error) == ("reading", "restarting", "KeyError: 'x'")
    now[0] += supervision.LONGEST_PAUSE_SECONDS
    assert [parts.step("reading", lambda: 7, -1) for _ in range(3)] == [7, 7, 7]
    assert parts.states()[0].state == "recovering"
    now[0] += supervision.STEADY_SECONDS
    assert parts.states()[0].state == "running"


def test_errors_that_are_the_loops_own_pass_through_a_step() -> None:
    parts = Supervisor()

    def is_away() -> int:
        raise ConnectionError("away")

    for _ in range(2):
        with pytest.raises(ConnectionError):
            parts.step("reading", is_away, -1, passes=lambda error: isinstance(error, ConnectionError))
