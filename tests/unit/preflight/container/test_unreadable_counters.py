"""Counters of a quota that cannot be read: nothing is said of throttling, and nothing fails."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from preflight.container.counters import SystemCounters


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with the files of a v2 cgroup that was throttled for a second."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "cg").mkdir()
    (tmp_path / "proc/self/mountinfo").write_text("1 1 0:1 / /cg rw - cgroup2 x rw\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "cg/cpu.max").write_text("50000 100000\n")
    (tmp_path / "cg/cpu.stat").write_text("nr_periods 20\nnr_throttled 20\nthrottled_usec 1000000\n")
    return tmp_path


def vanish(path: Path) -> None:
    path.unlink()


def become_garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00 throttled_usec many\n")


def become_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def fail_when_read(path: Path) -> None:
    path.unlink()
    path.symlink_to("/proc/self/mem")  # reading it at 0 fails with an input/output error


@pytest.mark.parametrize("spoil", [vanish, become_garbage, become_a_directory, fail_when_read])
def test_statistics_that_cannot_be_read_are_no_throttling(root: Path, spoil: Callable[[Path], None]) -> None:
    """The quota is known all the same."""
    machine = SystemCounters(root, affinity=frozenset(os.sched_getaffinity(0)))
    before = machine.sample()
    assert before.throttled == 1.0
    spoil(root / "cg/cpu.stat")
    noise = machine.sample().since(before)
    assert (noise.throttled, noise.quota, noise.noisy) == (0.0, 0.5, False)
