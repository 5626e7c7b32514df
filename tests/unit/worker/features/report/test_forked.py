"""A part of the work that a fork does, beside this process."""

import os
import signal
from collections.abc import Iterator

import pytest

from worker.features.report.forked import Fork


@pytest.fixture
def one_core() -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


def test_another_process_draws_it() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one core")
    assert Fork(os.getpid).result() != os.getpid()


@pytest.mark.usefixtures("one_core")
def test_on_one_core_this_process_draws_it() -> None:
    assert Fork(os.getpid).result() == os.getpid()


def test_what_a_killed_fork_leaves_is_drawn_here() -> None:
    here = os.getpid()

    def draw() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    assert Fork(draw).result() == here


def test_an_error_is_raised_where_the_part_is_used() -> None:
    def draw() -> int:
        raise LookupError("no such class")

    fork = Fork(draw)
    with pytest.raises(LookupError, match="no such class"):
        fork.result()
