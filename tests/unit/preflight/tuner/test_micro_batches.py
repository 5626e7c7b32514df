"""Micro-batch tuning by the share of memory in use."""

from itertools import pairwise

from preflight.tuner.micro_batches import QUIET_STEPS, MicroBatchTuner
from preflight.tuner.settings import Change

BATCH = 128


def shares(micro: MicroBatchTuner, *heard: tuple[int, float]) -> list[tuple[int, int]]:
    """Return (before, after) of what comes of steps and shares."""
    found = (micro.observe(steps, share) for steps, share in heard)
    return [(change.before, change.after) for change in found if change]


def test_micro_batches_are_halved_while_memory_is_short() -> None:
    """Above 85 %, as long as that helps; in between nothing changes."""
    micro = MicroBatchTuner(64, BATCH, batch_statistics=False)
    assert shares(micro, (50, 0.85), (50, 0.6), (50, 0.5)) == []
    change = micro.observe(50, 0.91)
    assert change == Change(
        field="micro_batch", before=64, after=32, reason="91% of the memory limit are in use, more than 85%"
    )
    assert shares(micro, (50, 0.88), (50, 0.86), (50, 0.7), (50, 0.9)) == [(32, 16), (16, 8), (8, 4)]


def test_what_does_not_help_is_not_done_again() -> None:
    """Where something else takes the memory, one halving shows it; only what grows further calls for another."""
    micro = MicroBatchTuner(64, BATCH, batch_statistics=False)
    assert shares(micro, (50, 0.90), (50, 0.90), (50, 0.895), (50, 0.905)) == [(64, 32)]
    assert shares(micro, (50, 0.93), (50, 0.93)) == [(32, 16)]


def test_they_grow_again_up_to_the_plans() -> None:
    """Below 50 % for ten steps, counted over windows."""
    micro = MicroBatchTuner(48, BATCH, batch_statistics=False)
    assert shares(micro, (5, 0.9), (5, 0.8), (5, 0.9), (5, 0.4)) == [(48, 24), (24, 12)]
    change = micro.observe(5, 0.4)
    assert change is not None
    assert change.reason == f"40% of the memory limit are in use, less than 50% for {QUIET_STEPS} steps"
    assert shares(micro, (9, 0.4), (9, 0.6), (9, 0.4), (1, 0.4), (100, 0.1)) == [(24, 48)]


def test_growing_in_vain_becomes_rare() -> None:
    """When the larger one does not fit either, it takes twice as long until the next time."""
    micro = MicroBatchTuner(64, BATCH, batch_statistics=False)
    filled = {64: 0.95, 32: 0.45}
    now, steps, grown = 64, 0, list[int]()
    while len(grown) < 4:
        steps += 1
        change = micro.observe(1, filled[now])
        if change:
            now = change.after
            grown += [steps] if now == 64 else []
    between = [after - before for before, after in pairwise(grown)]
    assert between == [2 * QUIET_STEPS + 1, 4 * QUIET_STEPS + 1, 8 * QUIET_STEPS + 1]


def test_batch_statistics_are_changed_only_where_memory_forbids_the_present_ones() -> None:
    """They are never changed back, and the reason says what the change means."""
    micro = MicroBatchTuner(128, BATCH, batch_statistics=True)
    change = micro.observe(50, 0.91)
    assert change is not None
    assert change.reason.endswith("more than 85%; its batch statistics are those of 64 samples from now on")
    assert shares(micro, (500, 0.1), (500, 0.1)) == []


def test_a_micro_batch_beyond_the_batch_counts_as_the_batch() -> None:
    """Halving 1,000 samples of 128 gives 64; a single one cannot be halved."""
    assert shares(MicroBatchTuner(1000, BATCH, batch_statistics=False), (50, 0.9)) == [(1000, 64)]
    assert shares(MicroBatchTuner(1, BATCH, batch_statistics=False), (50, 0.9)) == []
