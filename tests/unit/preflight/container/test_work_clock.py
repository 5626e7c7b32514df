"""What steps take under a quota: on paper, period by period, and in a real cgroup."""

import statistics
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.calibration.bandwidth import Bandwidth
from support.files.cgroups import new_cgroup

from preflight.container import work_clock
from preflight.container.resources import Quota
from preflight.container.work_clock import WorkClock, per_period, sustained

SPIN = """
import os, sys, time
from pathlib import Path
from preflight.container.resources import binding_quota
from preflight.container.work_clock import WorkClock
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
quota = binding_quota()
clock = WorkClock(quota)
for _ in range(8):
    until = time.process_time() + 0.005
    while time.process_time() < until:
        pass
    clock.lap()
timed = clock.timed()
print(float(quota.processors), quota.period_s, timed.period_s, min(timed.seconds))
"""


def quota_of(machine: Bandwidth) -> Quota:
    return Quota(Fraction(machine.processors), Path("cpu.max"), machine.period_s)


def ran(machine: Bandwidth, pieces: int, wall_s: float, cpu_s: float) -> list[float]:
    """Return the wall seconds of pieces that follow one another."""
    return [machine.work(wall_s, cpu_s) for _ in range(pieces)]


@pytest.mark.parametrize(
    ("processors", "threads", "period_s", "phase", "step_s"),
    [
        (0.25, 1, 0.1, 0.0, 0.008), (0.5, 1, 0.01, 0.03, 0.03), (0.5, 2, 1.0, 0.07, 0.11), (0.75, 1, 0.1, 0.03, 0.11),
        (1.5, 2, 0.1, 0.07, 0.03), (1.0, 2, 0.01, 0.0, 0.008),
    ],
)  # fmt: skip
def test_a_short_series_tells_what_a_long_one_takes(
    processors: float, threads: int, period_s: float, phase: float, step_s: float
) -> None:
    """Four steps, wherever in a period they begin, are timed as 5,000 take, where their median is off by half."""
    long = Bandwidth(processors, period_s)
    truth = sum(ran(long, 5000, step_s, threads * step_s)) / 5000
    short = Bandwidth(processors, period_s)
    short.work(1e-4 + phase * period_s, (1e-4 + phase * period_s) / 4)
    before = short.throttled_s
    walls = ran(short, 4, step_s, threads * step_s)
    timed = sustained(walls, [threads * step_s] * 4, quota_of(short), short.throttled_s - before)
    assert statistics.fmean(timed.seconds) == pytest.approx(truth, rel=0.02)


def test_a_burst_makes_no_short_measurement_quicker() -> None:
    """What was saved lets eight steps run at full speed; 5,000 steps get no more than the quota."""
    machine = Bandwidth(0.5, burst_s=0.5)
    walls = ran(machine, 8, 0.02, 0.02)
    assert walls == pytest.approx([0.02] * 8)
    timed = sustained(walls, [0.02] * 8, quota_of(machine), 0.0)
    assert timed.seconds == pytest.approx([0.04] * 8)
    assert timed.period_s == 0.1
    assert sum(ran(machine, 5000, 0.02, 0.02)) / 5000 == pytest.approx(0.04, rel=0.01)


@pytest.mark.parametrize(("processors", "threads"), [(0.25, 1), (0.5, 1), (0.5, 2), (0.75, 1), (1.5, 2)])
def test_without_cpu_stat_the_quickest_steps_tell_full_speed(processors: float, threads: int) -> None:
    """Enough for steps that are short against a period, some of which run at full speed."""
    machine = Bandwidth(processors)
    walls = ran(machine, 40, 0.004, threads * 0.004)
    timed = sustained(walls, [threads * 0.004] * 40, quota_of(machine), None)
    assert timed.seconds == pytest.approx([threads * 0.004 / processors] * 40, rel=0.02)


@given(
    walls=st.lists(st.floats(1e-3, 1), min_size=1, max_size=20), share=st.floats(0.1, 0.9),
    throttled_s=st.none() | st.just(0.0),
)  # fmt: skip
def test_a_quota_that_is_not_used_up_changes_nothing(
    walls: list[float], share: float, throttled_s: float | None
) -> None:
    """Steps that take less CPU time than it grants in their wall time keep that, and their median its robustness."""
    least = min(walls) * share
    timed = sustained(walls, [least] * len(walls), Quota(Fraction(1), Path("cpu.max"), 0.1), throttled_s)
    assert (timed.seconds, timed.period_s) == (tuple(walls), None)


def test_without_a_quota_only_wall_time_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other clock is asked for."""
    monkeypatch.setattr(time, "process_time", lambda: pytest.fail("the CPU clock was read"))
    clock = WorkClock(None)
    assert clock.timed().seconds == ()
    clock.lap()
    clock.lap()
    timed = clock.timed()
    assert (len(timed.seconds), timed.period_s) == (2, None)


def test_what_others_use_of_the_quota_is_missing() -> None:
    """Half of it goes to another process of the cgroup: the steps take twice what their own CPU time explains."""
    walls, cpus = [0.2] * 40, [0.02] * 40
    timed = sustained(walls, cpus, Quota(Fraction(1, 5), Path("cpu.max"), 0.1), 7.2)
    assert statistics.fmean(timed.seconds) == pytest.approx(0.2, rel=0.02)


@given(seconds=st.lists(st.floats(1e-3, 1), max_size=40), period_s=st.floats(0.01, 1))
def test_pieces_of_a_period_share_its_mean(seconds: list[float], period_s: float) -> None:
    """The sum stays, in the whole and up to any end of a period; a piece of a period or more stays as it is."""
    shared = per_period(seconds, period_s)
    assert len(shared) == len(seconds)
    assert sum(shared) == pytest.approx(sum(seconds))
    assert per_period([period_s] * 3, period_s) == [period_s] * 3


def test_the_median_of_shared_pieces_is_no_step_at_full_speed() -> None:
    """One step in five pays for the threads that spun while others were throttled: each counts with its share."""
    assert statistics.median(per_period([0.02, 0.02, 0.02, 0.02, 0.04] * 6, 0.12)) == pytest.approx(0.024)


def test_loader_workers_use_the_quota_too() -> None:
    """The CPU time of a living child is seen to the microsecond; one that ended is none."""
    code = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        assert work_clock.children_seconds() >= 0.2
        child.stdin.close()


@pytest.mark.parametrize(
    ("content", "seconds"),
    [("nr_periods 9\nthrottled_time 1500000000\n", 1.5), ("usage_usec 5\nthrottled_usec 250000\n", 0.25),
     ("nr_periods 9\n", None), ("\xff", None), (None, None)],
)  # fmt: skip
def test_throttled_time_is_that_of_the_level_that_binds(
    tmp_path: Path, content: str | None, seconds: float | None
) -> None:
    """Of v1 in nanoseconds, of v2 in microseconds; a file that is absent or garbage tells nothing, and no error."""
    if content is not None:
        (tmp_path / "cpu.stat").write_text(content)
    quota = Quota(Fraction(1, 2), tmp_path / "cpu.max", 0.1)
    assert work_clock.throttled_seconds(quota) == seconds
    clock = WorkClock(quota)
    clock.lap()
    assert len(clock.timed().seconds) == 1


def test_a_clock_that_cannot_be_read_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may hide other processes, and the list of the children."""

    def refused(*_: object) -> float:
        raise PermissionError

    monkeypatch.setattr(time, "clock_gettime", refused)
    assert work_clock.children_seconds() == 0
    monkeypatch.setattr(Path, "read_text", refused)
    assert work_clock.children_seconds() == 0


def test_a_real_quota_is_seen() -> None:
    """Of 5 ms of CPU time each, steps in a cgroup of a fifth of a processor take 25 ms, however quick they ran."""
    with new_cgroup("cpu") as directory:
        (directory / "cpu.cfs_period_us").write_text("50000")
        (directory / "cpu.cfs_quota_us").write_text("10000")
        ended = subprocess.run(
            [sys.executable, "-c", SPIN, str(directory)], capture_output=True, text=True, timeout=60, check=True
        )
    processors, period_s, paced_s, least_s = map(float, ended.stdout.split())
    assert (processors, period_s, paced_s) == (0.2, 0.05, 0.05)
    assert least_s >= 0.025
