"""Limits of a container that change while a training runs: what is seen, and what follows from it."""

import dataclasses
from pathlib import Path

import pytest
from support.worker.records import Records

from preflight.container.resources import MemoryUse, Share
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.tuner.surroundings import Container
from training.loop.limit_watch import LimitWatch, ProcessorChange
from training.loop.plan_tuner import PlanTuner
from training.prediction import Prediction
from training.step.train_step import TrainStep

MIB = 1 << 20
SPEC = TrainSpec(dataset="digits", model="cnn", batch_size=64)
PLAN = Plan(threads=2, micro_batch=64)
PREDICTION = Prediction(epoch_s=8.0, low_s=7.5, high_s=9.0, step_s=0.1, validation_s=1.0, warm_s=0.5)
HALVED = ProcessorChange(before=2.0, after=0.5)


@pytest.fixture(params=[1, 2])
def container(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, int]:
    """Return a root with the cgroup files of either version, 2 CPU and 1 GiB, and the version."""
    version: int = request.param
    (tmp_path / "proc/self").mkdir(parents=True)
    group = tmp_path / "cg"
    group.mkdir()
    kind = "cgroup x rw,cpu,memory" if version == 1 else "cgroup2 x rw"
    (tmp_path / "proc/self/mountinfo").write_text(f"1 1 0:1 / /cg rw - {kind}\n")
    (tmp_path / "proc/self/cgroup").write_text("1:cpu,memory:/\n" if version == 1 else "0::/\n")
    (group / "memory.stat").write_text("total_inactive_file 0\ntotal_active_file 0\ninactive_file 0\nactive_file 0\n")
    limit(tmp_path, version, processors=2.0, memory=1024 * MIB)
    (group / ("memory.usage_in_bytes" if version == 1 else "memory.current")).write_text(f"{600 * MIB}\n")
    return tmp_path, version


def limit(root: Path, version: int, *, processors: float, memory: int) -> None:
    """Set the limits, as `docker update` does."""
    if version == 1:
        (root / "cg/cpu.cfs_period_us").write_text("100000\n")
        (root / "cg/cpu.cfs_quota_us").write_text(f"{processors * 100_000:.0f}\n")
        (root / "cg/memory.limit_in_bytes").write_text(f"{memory}\n")
    else:
        (root / "cg/cpu.max").write_text(f"{processors * 100_000:.0f} 100000\n")
        (root / "cg/memory.max").write_text(f"{memory}\n")


def test_a_changed_quota_is_seen_once(container: tuple[Path, int]) -> None:
    """By the look after the change; what has not changed is no change."""
    root, version = container
    watch = LimitWatch(MemoryUse(root, mem_total=64 << 30), root, affinity=lambda: 4)
    assert watch.processors() is None
    limit(root, version, processors=0.5, memory=1024 * MIB)
    assert watch.processors() == ProcessorChange(before=2.0, after=0.5)
    assert watch.processors() is None


def test_fewer_processors_are_seen(container: tuple[Path, int]) -> None:
    """A cpuset that was shrunk below the quota; one that is still above it changes nothing."""
    root, _ = container
    allowed = [4, 3, 1]
    watch = LimitWatch(MemoryUse(root, mem_total=64 << 30), root, affinity=lambda: allowed.pop(0))
    assert watch.processors() is None
    assert watch.processors() == ProcessorChange(before=2.0, after=1.0)


def test_a_lowered_memory_limit_is_seen_once(container: tuple[Path, int]) -> None:
    """With what is in use; a raised one is taken without a word."""
    root, version = container
    memory = MemoryUse(root, mem_total=64 << 30)
    watch = LimitWatch(memory, root, affinity=lambda: 2)
    assert watch.memory() is None
    limit(root, version, processors=2.0, memory=512 * MIB)
    cut = watch.memory()
    assert cut is not None
    assert cut.describe() == "the memory limit was lowered from 1,024 to 512 MiB, of which 600 MiB are in use"
    assert (watch.memory(), memory.limit) == (None, 512 * MIB)
    limit(root, version, processors=2.0, memory=2048 * MIB)
    assert (watch.memory(), memory.limit) == (None, 2048 * MIB)


def test_memory_in_use_is_that_of_the_container_also_in_a_cgroup_of_the_child(container: tuple[Path, int]) -> None:
    """Which has what the child alone has allocated: torch is its fork server's."""
    root, version = container
    own = root / "cg" / "preflight-12-345-0"
    own.mkdir()
    (own / "memory.stat").write_text((root / "cg/memory.stat").read_text())
    (own / ("memory.usage_in_bytes" if version == 1 else "memory.current")).write_text(f"{40 * MIB}\n")
    (root / "proc/self/cgroup").write_text(f"{'1:cpu,memory:' if version == 1 else '0::'}/{own.name}\n")
    memory = MemoryUse(root, mem_total=64 << 30)
    assert (memory.bytes(), memory.container_bytes(), memory.limit) == (40 * MIB, 600 * MIB, 1024 * MIB)


def test_a_share_follows_the_container(container: tuple[Path, int]) -> None:
    """Two workers in it have half of its new limits each."""
    root, version = container
    memory = MemoryUse(root, mem_total=64 << 30, share=Share(of=2, memory_bytes=512 * MIB))
    watch = LimitWatch(memory, root, shares=2, affinity=lambda: 4)
    limit(root, version, processors=1.0, memory=512 * MIB)
    assert watch.processors() == ProcessorChange(before=1.0, after=0.5)
    assert watch.memory() is not None
    assert memory.limit == 256 * MIB


def test_limits_that_cannot_be_read_are_no_change(container: tuple[Path, int]) -> None:
    """The affinity is what is left of them."""
    root, version = container
    watch = LimitWatch(MemoryUse(root, mem_total=64 << 30), root, affinity=lambda: 2)
    (root / "cg" / ("cpu.cfs_quota_us" if version == 1 else "cpu.max")).write_text("garbage\n")
    (root / "cg" / ("memory.limit_in_bytes" if version == 1 else "memory.max")).unlink()
    assert (watch.processors(), watch.memory()) == (None, None)


@pytest.mark.parametrize(
    ("planned", "change", "threads", "slower"),
    [
        (2, ProcessorChange(before=2.0, after=0.5), 1, 4.0),
        (2, ProcessorChange(before=2.0, after=1.5), 2, 2 / 1.5),
        (4, ProcessorChange(before=4.0, after=1.5), 2, 4 / 1.5),
        (1, ProcessorChange(before=2.0, after=1.0), 1, 1.0),
        (2, ProcessorChange(before=1.0, after=0.5), 2, 2.0),  # more threads than processors, as was measured
        (1, ProcessorChange(before=0.5, after=2.0), 1, 0.5),
    ],
)
def test_threads_follow_a_limit(planned: int, change: ProcessorChange, threads: int, slower: float) -> None:
    """Those without a processor are given up; a step takes as much longer as fewer processors work on it."""
    assert change.fitting(planned) == threads
    assert change.slowdown(planned, threads) == pytest.approx(slower)


def adapted(
    tmp_path: Path, change: ProcessorChange, *, spec: TrainSpec = SPEC, prediction: Prediction | None = PREDICTION
) -> tuple[Prediction | None, TrainStep, Records]:
    step, records = TrainStep(spec, PLAN, (1, 28, 28), 10), Records()
    tuner = PlanTuner(step, records, prediction, Container(tmp_path))
    return tuner.adapt_to(change, Container(tmp_path)), step, records


@pytest.mark.usefixtures("torch_as_it_was")
def test_the_prediction_is_told_anew(tmp_path: Path) -> None:
    """In the record of the change of threads: a quarter of the processors, four times the seconds, more doubt."""
    told, step, records = adapted(tmp_path, HALVED)
    assert told is not None
    assert (told.epoch_s, told.step_s, told.validation_s, told.warm_s) == (32.0, 0.4, 4.0, 2.0)
    assert [told.low_s, told.high_s] == pytest.approx([27.0, 39.6])
    assert step.plan == dataclasses.replace(PLAN, threads=1)
    (record,) = records.of("adapted")
    assert record == {
        "field": "threads", "before": 2, "after": 1, "predicted_epoch_s": 32.0,
        "predicted_low_s": told.low_s, "predicted_high_s": told.high_s,
        "reason": "the container's limit was changed from 2 to 0.5 CPU; an epoch should take 32 s from now on",
    }  # fmt: skip


@pytest.mark.usefixtures("torch_as_it_was")
def test_a_deterministic_training_keeps_its_plan(tmp_path: Path) -> None:
    """It is told, and its prediction is of the threads that it keeps."""
    told, step, records = adapted(tmp_path, HALVED, spec=dataclasses.replace(SPEC, deterministic=True))
    assert told is not None
    assert (told.epoch_s, step.plan) == (32.0, PLAN)
    assert [(record["before"], record["after"]) for record in records.of("adapted")] == [(2, 2)]


@pytest.mark.usefixtures("torch_as_it_was")
def test_a_change_is_told_without_a_prediction(tmp_path: Path) -> None:
    """There is nothing to tell anew then."""
    told, step, records = adapted(tmp_path, HALVED, prediction=None)
    assert (told, step.plan) == (None, PLAN)
    (record,) = records.of("adapted")
    assert (record["predicted_epoch_s"], record["reason"]) == (
        None, "the container's limit was changed from 2 to 0.5 CPU"
    )  # fmt: skip


def test_memory_in_use_is_that_of_the_level_that_was_lowered(tmp_path: Path) -> None:
    """The child's own cgroup has room, that around it has none: its supervisor takes memory, too."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("1 1 0:1 / /cg rw - cgroup2 x rw\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    for group, most, used in (("cg/job", 900, 200), ("cg", 1024, 280)):
        (tmp_path / group).mkdir(exist_ok=True, parents=True)
        (tmp_path / group / "memory.max").write_text(f"{most * MIB}\n")
        (tmp_path / group / "memory.current").write_text(f"{used * MIB}\n")
        (tmp_path / group / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")
    memory = MemoryUse(tmp_path, mem_total=64 << 30)
    memory.read_limit()
    assert (memory.limit, memory.bytes()) == (900 * MIB, 200 * MIB)
    (tmp_path / "cg/memory.max").write_text(f"{300 * MIB}\n")
    memory.read_limit()
    assert (memory.limit, memory.bytes()) == (300 * MIB, 280 * MIB)
