"""Thread tuning on simulated machines."""

from collections.abc import Callable, Iterable
from itertools import chain, pairwise, repeat
from typing import NamedTuple

import pytest

from training.loop.tuning.change import Change
from training.loop.tuning.threads import FIRST_WAIT, LONGEST_WAIT, ThreadTuner, Throughput

BATCH = 128
WINDOW = 0.5
"""Seconds."""
ALONE = {1: 10_100.0, 2: 16_000.0}
"""Threads -> samples/s of two processors, as they were measured on a quiet machine."""
BESIDE = {1: 9_750.0, 2: 4_600.0}
"""The same with one busy process on one of the processors."""


class Heard(NamedTuple):
    """What came of a window."""

    threads: int
    """That it ran on."""
    change: Change | None


def simulated(
    machine: Iterable[dict[int, float]], planned: int = 2, expected: float = 16_000.0, *, most: int = 1,
    free: Callable[[], int | None] = lambda: None,
) -> list[Heard]:  # fmt: skip
    """Return what is decided while the machine runs as fast as it says, window by window of half a second."""
    threads = ThreadTuner(planned, 1, 1 / expected, most)
    now, heard = planned, []
    for speed in machine:
        change = threads.observe(windowed(speed[now]), lambda: "others were busy", free())
        heard.append(Heard(now, change))
        now = change.after if change else now
    return heard


def windowed(rate: float) -> Throughput:
    """Return a window of as many steps of one sample as make `rate` samples per second."""
    return Throughput(steps=round(WINDOW * rate), seconds=WINDOW)


def changes(heard: list[Heard]) -> list[tuple[int, int]]:
    return [(one.change.before, one.change.after) for one in heard if one.change]


def ran_on(heard: list[Heard], threads: int) -> float:
    return sum(one.threads == threads for one in heard) / len(heard)


def test_a_training_as_fast_as_predicted_is_left_alone() -> None:
    """Also at 76 % of the prediction, and when it is slow for two windows at a time; one thread cannot be less."""
    slower = {threads: 0.76 * rate for threads, rate in ALONE.items()}
    assert changes(simulated([*repeat(ALONE, 100), *repeat(slower, 100)])) == []
    assert changes(simulated([BESIDE, BESIDE, ALONE] * 50)) == []
    assert changes(simulated(repeat({1: 100.0}, 100), 1)) == []


def test_beside_a_neighbour_one_thread_is_tried_and_kept() -> None:
    """Three slow windows, a trial of three, and then one thread for as long as the neighbour stays."""
    heard = simulated(chain(repeat(ALONE, 10), repeat(BESIDE, 60)))
    tried = next(index for index, one in enumerate(heard) if one.change)
    assert tried == 12
    first, kept = [one.change for one in heard if one.change][:2]
    assert first == Change(
        field="threads", before=2, after=1,
        reason="3 windows at 29% of the 16,000 samples/s measured before: others were busy; trying 1 thread",
    )  # fmt: skip
    assert kept == Change(
        field="threads", before=2, after=1,
        reason="1 thread did 9,750 samples/s and 2 threads 4,600; staying",
    )  # fmt: skip
    assert ran_on(heard[tried + 1 :], 1) > 0.85


def test_when_the_neighbour_leaves_the_planned_threads_come_back() -> None:
    """One thread is as fast as before then; only a trial of two can show it, and it is made in time."""
    heard = simulated(chain(repeat(BESIDE, 40), repeat(ALONE, 200)))
    back = next(index for index, one in enumerate(heard) if index >= 40 and one.change)
    assert back < 40 + 2 * FIRST_WAIT / WINDOW + 5
    assert all(one.threads == 2 for one in heard[back + 1 :])
    assert [one.change.reason for one in heard if one.change][-1] == (
        "2 threads did 16,000 samples/s and 1 thread 10,100; staying"
    )


def test_while_a_neighbour_is_seen_more_threads_are_not_tried() -> None:
    """A trial beside it takes many times as long as the same steps on one thread; once it has left, two are tried."""
    seen = iter([*[1] * 400, *[2] * 100])
    beside = simulated(repeat(BESIDE, 300), 1, BESIDE[1], most=2, free=lambda: next(seen))
    assert changes(beside) == []
    alone = simulated(repeat(ALONE, 200), 1, BESIDE[1], most=2, free=lambda: next(seen))
    assert changes(alone) == [(1, 2), (1, 2)]
    assert [one.change.reason for one in alone if one.change] == [
        "trying whether 2 threads are faster now",
        "2 threads did 16,000 samples/s and 1 thread 10,100; staying",
    ]


def test_trials_in_vain_become_rare() -> None:
    """A neighbour that stays unseen: two threads are tried after 20 windows, 40, 80, and every 120 from then on."""
    heard = simulated(repeat(BESIDE, 2000))
    tried = [index for index, one in enumerate(heard) if one.change and one.change.reason.startswith("trying whether")]
    between = [after - before for before, after in pairwise(tried)]
    assert between[:3] == [count * FIRST_WAIT / WINDOW + 4 for count in (1, 2, 4)]
    assert set(between[3:]) == {LONGEST_WAIT / WINDOW + 4}
    assert ran_on(heard, 1) > 0.97


def test_one_thread_is_tried_wherever_others_hold_processors() -> None:
    """Though the training is as fast as predicted: the calibration may have been beside the same neighbour."""
    heard = simulated(repeat(BESIDE, 100), expected=BESIDE[2], free=lambda: 1)
    tried, kept = [one.change for one in heard if one.change]
    assert tried.reason == "others leave 1 free processor for 2 threads; trying 1 thread"
    assert kept.reason == "1 thread did 9,750 samples/s and 2 threads 4,600; staying"
    assert ran_on(heard, 1) > 0.9
    assert changes(simulated(repeat(BESIDE, 100), expected=BESIDE[2], free=lambda: 2)) == []


def test_trials_beside_others_that_do_not_help_become_rare() -> None:
    """Others hold a processor, and two threads are faster all the same: each trial costs one and a half seconds."""
    heard = simulated(repeat(ALONE, 1000), free=lambda: 1)
    assert changes(heard)[:2] == [(2, 1), (1, 2)]
    assert ran_on(heard, 2) > 0.96


def test_as_many_threads_as_processors_are_free_are_tried_at_once() -> None:
    """On sixteen processors, seven of which others hold."""
    speed = {threads: 100.0 * threads if threads <= 9 else 50.0 * threads for threads in range(1, 17)}
    heard = simulated(repeat(speed, 100), 16, 1600.0, free=lambda: 9)
    assert changes(heard)[:2] == [(16, 9), (16, 9)]


def test_where_fewer_threads_do_not_help_the_planned_ones_stay() -> None:
    """A slow disk, say: one thread is no faster, and is tried ever more rarely."""
    slow = {1: 4_000.0, 2: 4_000.0}
    heard = simulated(repeat(slow, 1000))
    first, back = [one.change for one in heard if one.change][:2]
    assert (first.before, first.after, back.before, back.after) == (2, 1, 1, 2)
    assert back.reason == "1 thread did 4,000 samples/s and 2 threads 4,000; going back"
    assert ran_on(heard, 2) > 0.96
    assert len(changes(heard)) < 2 * (1000 * WINDOW / LONGEST_WAIT + 5)


def test_a_neighbour_that_comes_back_is_escaped_in_seconds() -> None:
    """Each step takes seconds beside it, so that the wait for the next trial is one of seconds, not of windows."""
    threads = ThreadTuner(1, 1, 1 / BESIDE[1], most=2)
    alone = [threads.observe(windowed(ALONE[threads.now]), "".__str__, 2) for _ in range(10)]
    assert threads.now == 2
    assert any(alone)
    slow_s = 0.0
    while threads.now == 2:
        threads.observe(Throughput(steps=128, seconds=3.0), "".__str__, None)
        slow_s += 3.0
    assert slow_s <= FIRST_WAIT + 3.0


@pytest.mark.parametrize("period", [1, 2, 5, 7, 30, 100])
def test_a_flapping_neighbour_never_costs_more_than_it_takes_anyway(period: int) -> None:
    """However often one comes and goes: at most a few percent slower than without any of this, and few changes."""
    machine = list(chain.from_iterable([*repeat(BESIDE, period), *repeat(ALONE, period)] for _ in range(600 // period)))
    heard = simulated(machine)
    time = sum(1 / speed[one.threads] for speed, one in zip(machine, heard, strict=True))
    unchanged = sum(1 / speed[2] for speed in machine)
    assert time < 1.05 * unchanged
    assert len(changes(heard)) < len(machine) / 10


def test_of_many_threads_a_quarter_less_is_tried_at_a_time() -> None:
    """Down to what the neighbours leave, each try in vain followed by a lower one; and back to all of them at once."""

    def speed(free: int) -> dict[int, float]:
        """All threads wait for those that share a processor."""
        return {threads: 100.0 * threads if threads <= free else 50.0 * threads for threads in range(1, 17)}

    heard = simulated(chain(repeat(speed(16), 10), repeat(speed(9), 300), repeat(speed(16), 300)), 16, 1600.0)
    assert changes(heard)[:4] == [(16, 12), (12, 16), (16, 9), (16, 9)]
    assert ran_on(heard[60:310], 9) > 0.8
    assert heard[-1].threads == 16


def test_the_first_window_warms_up() -> None:
    """It says nothing about the plan, nor does the one after a change of something else."""
    threads = ThreadTuner(2, BATCH, BATCH / 16_000)
    slow = Throughput(steps=10, seconds=10 * BATCH / 4_600)

    def observed() -> Change | None:
        return threads.observe(slow, "".__str__, None)

    assert [observed() for _ in range(3)] == [None] * 3
    threads.settle()
    assert [observed() for _ in range(3)] == [None] * 3
    assert observed() is not None
