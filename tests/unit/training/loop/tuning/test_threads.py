"""What a running training changes about its plan: decisions on simulated machines, and what is recorded of them."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from pydantic import JsonValue

from training.config.plan import Plan
from training.config.spec import TrainSpec
from training.loop.prediction import Prediction
from training.loop.train_step import TrainStep
from training.loop.tuning.threads import (
    FIRST_WAIT,
    LONGEST_WAIT,
    QUIET_STEPS,
    Adapter,
    Change,
    MicroBatches,
    Pace,
    Threads,
)
from training.system.interference import Machine, Snapshot
from training.system.resources import MemoryUse

BATCH = 128
ALONE = {1: 10_100.0, 2: 16_000.0}
"""Threads -> samples/s of two processors, as they were measured on a quiet machine."""
BESIDE = {1: 9_750.0, 2: 4_600.0}
"""The same with one busy process on one of the processors."""


class Heard(NamedTuple):
    """What came of a window."""

    threads: int
    """That it ran on."""
    change: Change | None


def simulated(machine: Iterable[dict[int, float]], planned: int = 2, expected: float = 16_000.0) -> list[Heard]:
    """Return what is decided while the machine runs as fast as it says, window by window of half a second."""
    threads = Threads(planned, BATCH, BATCH / expected)
    now, heard = planned, []
    for speed in machine:
        change = threads.heard(Pace(steps=1000, seconds=1000 * BATCH / speed[now]), lambda: "others were busy")
        heard.append(Heard(now, change))
        now = change.after if change else now
    return heard


def changes(heard: list[Heard]) -> list[tuple[int, int]]:
    """Return (before, after) of all changes."""
    return [(one.change.before, one.change.after) for one in heard if one.change]


def ran_on(heard: list[Heard], threads: int) -> float:
    """Return the share of windows that ran on so many threads."""
    return sum(one.threads == threads for one in heard) / len(heard)


def test_a_training_as_fast_as_predicted_is_left_alone() -> None:
    """Also at 76 % of the prediction, and when it is slow for two windows at a time."""
    slower = {threads: 0.76 * rate for threads, rate in ALONE.items()}
    assert changes(simulated([*repeat(ALONE, 100), *repeat(slower, 100)])) == []
    assert changes(simulated([BESIDE, BESIDE, ALONE] * 50)) == []


def test_beside_a_neighbour_one_thread_is_tried_and_kept() -> None:
    """Three slow windows, a trial of three, and then one thread for as long as the neighbour stays."""
    heard = simulated(chain(repeat(ALONE, 10), repeat(BESIDE, 60)))
    tried = next(index for index, one in enumerate(heard) if one.change)
    assert tried == 12
    first, kept = [one.change for one in heard if one.change][:2]
    assert first == Change(
        field="threads", before=2, after=1,
        reason="3 windows at 29% of the predicted 16,000 samples/s: others were busy; trying 1 thread",
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
    assert back < 40 + 2 * FIRST_WAIT + 5
    assert all(one.threads == 2 for one in heard[back + 1 :])
    assert [one.change.reason for one in heard if one.change][-1] == (
        "2 threads did 16,000 samples/s and 1 thread 10,100; staying"
    )


def test_trials_in_vain_become_rare() -> None:
    """A neighbour that stays: two threads are tried after 20 windows, 40, 80, and every 120 from then on."""
    heard = simulated(repeat(BESIDE, 2000))
    tried = [index for index, one in enumerate(heard) if one.change and one.change.reason.startswith("trying whether")]
    between = [after - before for before, after in pairwise(tried)]
    assert between[:3] == [FIRST_WAIT + 4, 2 * FIRST_WAIT + 4, 4 * FIRST_WAIT + 4]
    assert set(between[3:]) == {LONGEST_WAIT + 4}
    assert ran_on(heard, 1) > 0.97


def test_where_fewer_threads_do_not_help_the_planned_ones_stay() -> None:
    """A slow disk, say: one thread is no faster, and is tried ever more rarely."""
    slow = {1: 4_000.0, 2: 4_000.0}
    heard = simulated(repeat(slow, 1000))
    first, back = [one.change for one in heard if one.change][:2]
    assert (first.before, first.after, back.before, back.after) == (2, 1, 1, 2)
    assert back.reason == "1 thread did 4,000 samples/s and 2 threads 4,000; going back"
    assert ran_on(heard, 2) > 0.96
    assert len(changes(heard)) < 2 * (1000 / LONGEST_WAIT + 5)


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


def test_one_thread_cannot_be_less() -> None:
    """Nothing is tried where there is nothing to try."""
    assert changes(simulated(repeat({1: 100.0}, 100), 1)) == []


def test_the_first_window_warms_up() -> None:
    """It says nothing about the plan, nor does the one after a change of something else."""
    threads = Threads(2, BATCH, BATCH / 16_000)
    slow, seen = Pace(steps=10, seconds=10 * BATCH / 4_600), "".__str__
    assert [threads.heard(slow, seen) for _ in range(3)] == [None] * 3
    threads.settle()
    assert [threads.heard(slow, seen) for _ in range(3)] == [None] * 3
    assert threads.heard(slow, seen) is not None


def shares(micro: MicroBatches, *heard: tuple[int, float]) -> list[tuple[int, int]]:
    """Return (before, after) of what comes of steps and shares."""
    found = (micro.heard(steps, share) for steps, share in heard)
    return [(change.before, change.after) for change in found if change]


def test_micro_batches_are_halved_while_memory_is_short() -> None:
    """Above 85 %, as long as that helps; in between nothing changes."""
    micro = MicroBatches(64, BATCH, batch_statistics=False)
    assert shares(micro, (50, 0.85), (50, 0.6), (50, 0.5)) == []
    change = micro.heard(50, 0.91)
    assert change == Change(
        field="micro_batch", before=64, after=32, reason="91% of the memory limit are in use, more than 85%"
    )
    assert shares(micro, (50, 0.88), (50, 0.86), (50, 0.7), (50, 0.9)) == [(32, 16), (16, 8), (8, 4)]


def test_what_does_not_help_is_not_done_again() -> None:
    """Where something else takes the memory, one halving shows it; only what grows further calls for another."""
    micro = MicroBatches(64, BATCH, batch_statistics=False)
    assert shares(micro, (50, 0.90), (50, 0.90), (50, 0.895), (50, 0.905)) == [(64, 32)]
    assert shares(micro, (50, 0.93), (50, 0.93)) == [(32, 16)]


def test_they_grow_again_up_to_the_plans() -> None:
    """Below 50 % for ten steps, counted over windows."""
    micro = MicroBatches(48, BATCH, batch_statistics=False)
    assert shares(micro, (5, 0.9), (5, 0.8), (5, 0.9), (5, 0.4)) == [(48, 24), (24, 12)]
    change = micro.heard(5, 0.4)
    assert change is not None
    assert change.reason == f"40% of the memory limit are in use, less than 50% for {QUIET_STEPS} steps"
    assert shares(micro, (9, 0.4), (9, 0.6), (9, 0.4), (1, 0.4), (100, 0.1)) == [(24, 48)]


def test_growing_in_vain_becomes_rare() -> None:
    """When the larger one does not fit either, it takes twice as long until the next time."""
    micro = MicroBatches(64, BATCH, batch_statistics=False)
    filled = {64: 0.95, 32: 0.45}
    now, steps = 64, 0
    grown: list[int] = []
    while len(grown) < 4:
        steps += 1
        change = micro.heard(1, filled[now])
        if change:
            now = change.after
            grown += [steps] if now == 64 else []
    between = [after - before for before, after in pairwise(grown)]
    assert between == [2 * QUIET_STEPS + 1, 4 * QUIET_STEPS + 1, 8 * QUIET_STEPS + 1]


def test_batch_statistics_are_changed_only_where_memory_forbids_the_present_ones() -> None:
    """They are never changed back, and the reason says what the change means."""
    micro = MicroBatches(128, BATCH, batch_statistics=True)
    change = micro.heard(50, 0.91)
    assert change is not None
    assert change.reason.endswith("more than 85%; its batch statistics are those of 64 samples from now on")
    assert shares(micro, (500, 0.1), (500, 0.1)) == []


def test_a_micro_batch_beyond_the_batch_counts_as_the_batch() -> None:
    """Halving 1,000 samples of 128 gives 64; a single one cannot be halved."""
    assert shares(MicroBatches(1000, BATCH, batch_statistics=False), (50, 0.9)) == [(1000, 64)]
    assert shares(MicroBatches(1, BATCH, batch_statistics=False), (50, 0.9)) == []


class Records:
    """A report that keeps what is written."""

    def __init__(self) -> None:
        self.all: list[tuple[str, dict[str, JsonValue]]] = []

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        assert not durable
        self.all.append((kind, payload))


SPEC = TrainSpec(dataset="digits", model="cnn", batch_size=64)
PLAN = Plan(threads=2, micro_batch=64)
FAST = Prediction(epoch_s=1e-6, low_s=1e-6, high_s=1e-6, step_s=1e-8)
"""Nothing is as fast."""


@pytest.fixture(autouse=True)
def torch_state(torch_as_it_was: None) -> None:  # noqa: ARG001 - for what it does afterwards
    """Run each test on the threads of its plan."""
    torch.set_num_threads(PLAN.threads)


def memory(root: Path, used: int) -> MemoryUse:
    """Return the memory of a container of 1,000 bytes."""
    (root / "proc/self").mkdir(parents=True)
    (root / "cg").mkdir()
    (root / "proc/self/mountinfo").write_text("1 1 0:1 / /cg rw - cgroup2 x rw\n")
    (root / "proc/self/cgroup").write_text("0::/\n")
    (root / "cg/memory.max").write_text("1000\n")
    (root / "cg/memory.current").write_text(f"{used}\n")
    (root / "cg/memory.stat").write_text("inactive_file 0\nactive_file 0\n")
    return MemoryUse(root, mem_total=1 << 30)


Made = Callable[..., tuple[Adapter, TrainStep, Records]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Return what makes an adapter of a training in a made-up container."""

    def make(
        spec: TrainSpec = SPEC, plan: Plan = PLAN, prediction: Prediction | None = FAST
    ) -> tuple[Adapter, TrainStep, Records]:
        step, records = TrainStep(spec, plan, (1, 28, 28), 10), Records()
        return Adapter(step, records, prediction, Machine(tmp_path)), step, records

    return make


def test_an_adapter_changes_the_step_and_records_it(made: Made) -> None:
    """Short windows are added up to one that counts; after four of them torch runs on one thread."""
    adapter, step, records = made()
    plans = [adapter.window(5, 0.2, 0.6) for _ in range(8)]
    assert plans[:7] == [None] * 7
    assert plans[7] == step.plan == dataclasses.replace(PLAN, threads=1)
    assert torch.get_num_threads() == 1
    ((kind, payload),) = records.all
    assert (kind, payload["field"], payload["before"], payload["after"]) == ("adapted", "threads", 2, 1)
    assert "the machine was quiet; trying 1 thread" in str(payload["reason"])


def test_the_machine_is_looked_at_only_where_the_training_is_slow(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look costs what many steps do: once at the first slow window, once to say why."""
    adapter, step, _ = made(prediction=Prediction(epoch_s=5.0, low_s=5.0, high_s=5.0, step_s=0.005))
    look = Machine.look
    looks = itertools.count()

    def counted(machine: Machine) -> Snapshot:
        next(looks)
        return look(machine)

    monkeypatch.setattr(Machine, "look", counted)
    assert [adapter.window(100, 0.5, 0.6) for _ in range(50)] == [None] * 50
    assert next(looks) == 0
    assert [adapter.window(100, 1.0, 0.6) for _ in range(2)] == [None, None]
    assert next(looks) == 2
    assert adapter.window(100, 1.0, 0.6) == step.plan
    assert next(looks) == 4


def test_memory_comes_before_threads(made: Made) -> None:
    """A container of which 90 % are in use gets smaller pieces at once, and the windows before say nothing."""
    adapter, step, records = made()
    assert adapter.window(50, 0.5, 0.9) == step.plan == dataclasses.replace(PLAN, micro_batch=32)
    assert [adapter.window(50, 0.5, 0.9) for _ in range(3)] == [None] * 3
    assert adapter.window(50, 0.5, 0.9) == dataclasses.replace(PLAN, micro_batch=32, threads=1)
    assert "batch statistics are those of 32 samples" in str(records.all[0][1]["reason"])


def test_a_deterministic_job_is_never_changed(made: Made) -> None:
    """Neither for its speed nor for its memory."""
    adapter, step, records = made(dataclasses.replace(SPEC, deterministic=True))
    assert [adapter.window(50, 0.5, 0.99) for _ in range(100)] == [None] * 100
    assert (step.plan, records.all) == (PLAN, [])


def test_without_a_prediction_threads_stay(made: Made) -> None:
    """Nothing says then that they are slow; memory is looked after all the same."""
    adapter, _, records = made(prediction=None)
    assert [adapter.window(50, 0.5, None) for _ in range(100)] == [None] * 100
    assert records.all == []


def test_only_what_can_change_changes() -> None:
    """A step refuses a plan that needs another process."""
    step = TrainStep(SPEC, PLAN, (1, 28, 28), 10)
    with pytest.raises(ValueError, match="more than threads and micro_batch"):
        step.adopt(dataclasses.replace(PLAN, precision="bfloat16"))
    assert step.plan == PLAN
    assert step.batch_statistics


def test_memory_use_is_read_anew_each_time(tmp_path: Path) -> None:
    """It is that of the working set; None where there is nothing to read."""
    use = memory(tmp_path, 600)
    assert (use.bytes(), use.limit) == (600, 1000)
    (tmp_path / "cg/memory.stat").write_text("inactive_file 100\nactive_file 50\n")
    assert use.bytes() == 450
    (tmp_path / "cg/memory.current").unlink()
    assert use.bytes() is None
