"""The lock that keeps two calibrations apart: waited for, freed by any death, and never a reason to fail."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calibration.cache.lock import LOOK_EVERY, NAME, calibration_lock
from preflight.errors import Cancelled

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from calibration.cache.lock import calibration_lock

with calibration_lock(Path(sys.argv[1]), lambda: None, 0.0) as had:
    child = subprocess.Popen(["sleep", "600"], close_fds=False, stdout=subprocess.DEVNULL)
    print(had, child.pid, flush=True)
    sys.stdin.readline()
"""
Hold = Callable[[], tuple[subprocess.Popen[str], bool]]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Start a process that takes the lock and has a child; returns it, and whether it had the lock."""
    started: list[tuple[subprocess.Popen[str], int]] = []

    def hold() -> tuple[subprocess.Popen[str], bool]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        had, child = process.stdout.readline().split()
        started.append((process, int(child)))
        return process, had == "True"

    yield hold
    for process, child in started:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.communicate()


def nothing() -> None:
    """A tick that has no objection."""


def is_free(directory: Path) -> bool:
    """Whether the lock can be had at once."""
    with calibration_lock(directory, nothing, 0.0) as had:
        return had


def test_one_holds_it_and_the_other_does_not(tmp_path: Path, hold: Hold) -> None:
    """Between two processes; without patience the second goes on at once."""
    _, had = hold()
    began = time.monotonic()
    assert (had, is_free(tmp_path)) == (True, False)
    assert time.monotonic() - began < LOOK_EVERY


def test_patience_ends(tmp_path: Path, hold: Hold) -> None:
    """It waits as long as it may, looking every 50 ms, and goes on without the lock."""
    hold()
    ticks = []
    began = time.monotonic()
    with calibration_lock(tmp_path, lambda: ticks.append(time.monotonic()), 0.3) as had:
        assert not had
    assert 0.3 <= time.monotonic() - began < 2.0
    assert 2 <= len(ticks) <= 7


def test_it_is_had_once_the_holder_is_done(tmp_path: Path, hold: Hold) -> None:
    """The holder ends while another waits."""
    process, _ = hold()
    ticks = []

    def tick() -> None:
        ticks.append(0)
        if len(ticks) == 3 and process.stdin is not None:
            process.stdin.write("\n")
            process.stdin.flush()

    with calibration_lock(tmp_path, tick, 30.0) as had:
        assert had
    assert len(ticks) >= 3


def test_a_killed_holder_leaves_no_lock(tmp_path: Path, hold: Hold) -> None:
    """Although its child lives on, to which the lock does not pass."""
    process, had = hold()
    process.kill()
    process.wait()
    assert had
    assert (tmp_path / NAME).exists()
    assert is_free(tmp_path)


def test_what_the_tick_raises_goes_on_and_frees_nothing_of_others(tmp_path: Path, hold: Hold) -> None:
    """A cancellation ends the waiting; the holder keeps its lock, and no descriptor stays open here."""
    hold()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - Path would open one more

    def cancelled() -> None:
        raise Cancelled("cancelled on request")

    with pytest.raises(Cancelled), calibration_lock(tmp_path, cancelled, 30.0):
        raise AssertionError("it is not reached")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert not is_free(tmp_path)


def test_it_is_free_again_after_an_error(tmp_path: Path) -> None:
    """The body may raise; the directory is made where it is not."""
    directory = tmp_path / "not" / "there"
    with pytest.raises(ZeroDivisionError), calibration_lock(directory, nothing, 0.0) as had:
        assert had
        raise ZeroDivisionError
    assert is_free(directory)


def test_where_no_lock_can_be_the_work_goes_on(tmp_path: Path) -> None:
    """A directory that cannot be, a directory or a link under the lock's name: no lock and no exception."""
    (tmp_path / "file").touch()
    (tmp_path / "occupied" / NAME).mkdir(parents=True)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / NAME).symlink_to(tmp_path / "file")
    assert [is_free(tmp_path / name) for name in ("file", "occupied", "linked")] == [False] * 3


def test_a_pipe_under_its_name_does_not_block(tmp_path: Path) -> None:
    """It can be locked like any file."""
    os.mkfifo(tmp_path / NAME)
    assert is_free(tmp_path)
