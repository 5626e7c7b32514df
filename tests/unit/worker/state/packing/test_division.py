"""Division of processors: what each training gets, and when another one pays."""

import pytest

from training.prediction import Speeds, ordered, slowdown, speed
from worker.state.packing.division import LEAST_ALONE, Claim, divide, divide_anyhow, joining

CNN: Speeds = ((1, 10.0), (2, 14.0))
"""Two threads are 1.4 times as fast as one: two jobs of one do 1.43 times the work of one job of two."""
RESNET: Speeds = ((1, 10.0), (2, 19.0))
WIDE: Speeds = ((1, 1.0), (2, 1.8), (4, 3.0), (8, 4.5), (16, 6.0))


def test_speed_between_measurements_is_read_off_a_line_of_logarithms() -> None:
    assert speed(CNN, 2) == 14.0
    assert speed(((1, 1.0), (4, 4.0)), 2) == pytest.approx(2.0)
    assert speed(CNN, 16) == 14.0  # more threads than were measured bring nothing that is known
    assert speed(((2, 10.0), (4, 15.0)), 1) == 5.0
    assert slowdown(CNN, 2, 1) == pytest.approx(1.4)


def test_more_threads_are_never_slower() -> None:
    """A training that is slower on four threads than on two runs on two."""
    assert ordered([(4, 9.0), (1, 6.0), (2, 10.0)]) == ((1, 6.0), (2, 10.0), (4, 10.0))


@pytest.mark.parametrize(("speeds", "together"), [(CNN, 20 / 14), (RESNET, None), ((), 2**0.3)])
def test_a_second_job_begins_where_both_do_more(speeds: Speeds, together: float | None) -> None:
    """1.05 times as much is less than what two lose by sharing caches; unmeasured jobs are expected to gain."""
    claim = Claim(most=2, speeds=speeds)
    found = joining([claim], claim, 2, is_latency=False)
    assert (found and found.together) == (together and pytest.approx(together))
    assert found is None or found.processors == (1, 1)


def test_latency_leaves_a_running_job_nearly_all_of_its_speed() -> None:
    claim = Claim(most=2, speeds=CNN)
    assert joining([claim], claim, 2, is_latency=True) is None
    wide = Claim(most=16, speeds=WIDE)
    found = joining([wide], wide, 16, is_latency=True)
    assert found is not None
    assert wide.relative_speed(found.processors[0]) >= LEAST_ALONE
    free = joining([wide], wide, 16, is_latency=False)
    assert free is not None
    assert free.processors == (8, 8)


def test_processors_go_where_they_bring_most() -> None:
    """Four jobs of four threads each; one that cannot use more than one leaves the rest to others."""
    assert divide((Claim(most=16, speeds=WIDE),) * 4, 16) is not None
    found = divide((Claim(most=1), Claim(most=16, speeds=WIDE)), 16)
    assert found is not None
    assert found.processors == (1, 15)


def test_a_fixed_job_keeps_its_threads() -> None:
    """One that asks for all leaves no other one room; after a cut of the quota each has one processor at least."""
    fixed, other = Claim(most=2, is_fixed=True), Claim(most=2, speeds=CNN)
    assert joining([fixed], other, 2, is_latency=False) is None
    assert divide_anyhow((fixed, other, other), 1).processors == (2, 1, 1)
    assert divide_anyhow((other, other, other), 1).processors == (1, 1, 1)
