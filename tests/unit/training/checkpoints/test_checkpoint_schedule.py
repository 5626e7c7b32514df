"""When a checkpoint is due: by time, by cost, and early enough to be on disk in time."""

import pytest

from training.checkpoints import schedule
from training.checkpoints.schedule import CheckpointSchedule


class Clock:
    """Takes the place of the `time` module in the schedule; seconds pass as a test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(schedule, "time", clock)
    return clock


def due_after(seconds: float, wanted: CheckpointSchedule, clock: Clock) -> bool:
    clock.now = wanted.last + seconds
    return wanted.due()


def test_a_slow_disk_has_the_next_checkpoint_begin_earlier(clock: Clock) -> None:
    """A kill while one is written goes back to the one before: the interval holds for when it is on disk."""
    every_second = CheckpointSchedule(1.0)
    assert not due_after(0.9, every_second, clock)
    assert due_after(1.0, every_second, clock)
    every_second.write_seconds = 0.3
    assert not due_after(0.6, every_second, clock)
    assert due_after(0.7, every_second, clock)
    every_second.write_seconds = 30.0
    assert not due_after(0.4, every_second, clock)
    assert due_after(0.5, every_second, clock)  # not without a pause, however slow the disk


def test_an_expensive_checkpoint_waits_up_to_the_longest_interval(clock: Clock) -> None:
    """Where nothing is asked for, the share of `COST` decides between 15 and 60 s."""
    by_cost = CheckpointSchedule(None)
    by_cost.cost = 0.3
    assert not due_after(29, by_cost, clock)
    assert due_after(30.5, by_cost, clock)
    by_cost.cost, by_cost.write_seconds = 5.0, 2.0
    assert not due_after(57, by_cost, clock)
    assert due_after(58, by_cost, clock)
