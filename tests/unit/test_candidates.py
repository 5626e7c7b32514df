"""Which plans are worth a measurement: thread counts that the container can run, and one knob at a time."""

from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.candidates import knobs, thread_counts
from training.plan import MemoryFormat, Plan, Precision
from training.resources import Resources, detect

KNOB_FIELDS = ({"precision", "memory_format"}, {"threads"})
"""Fields that each knob may turn, in the order of the knobs."""


def detected(root: Path, cpu_max: str, affinity: int) -> Resources:
    """Return what detection finds in a version 2 cgroup with this cpu.max."""
    files = {
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": f"{cpu_max}\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return detect(root, affinity=frozenset(range(affinity)), mem_total=1 << 30)


def every_plan() -> list[Plan]:
    """Return the plans with every value of every knob."""
    return [
        Plan(threads=threads, micro_batch=32, precision=precision, memory_format=memory_format)
        for threads, precision, memory_format in product((1, 2, 3), get_args(Precision), get_args(MemoryFormat))
    ]


def changed(plan: Plan, best: Plan) -> set[str]:
    """Return the names of the fields in which two plans differ."""
    fields = asdict(best)
    return {name for name, value in asdict(plan).items() if value != fields[name]}


@pytest.mark.parametrize(
    ("cpu_max", "affinity", "counts"),
    [
        ("50000 100000", 4, (1,)),
        ("150000 100000", 4, (1, 2)),
        ("270000 100000", 4, (2, 3, 1)),
        ("200000 100000", 4, (2, 1)),
        ("800000 100000", 2, (2, 1)),
        ("270000 100000", 2, (2, 1)),
        ("max 100000", 4, (4, 2, 1)),
        ("max 100000", 3, (3, 1)),
        ("max 100000", 1, (1,)),
    ],
)
def test_counts_of_containers(tmp_path: Path, cpu_max: str, affinity: int, counts: tuple[int, ...]) -> None:
    """Whole cores come first, then a broken quota rounded up, then half the cores and one; affinity caps all."""
    assert thread_counts(detected(tmp_path, cpu_max, affinity)) == counts


@given(processors=st.sets(st.integers(0, 1023), min_size=1, max_size=128), quota=st.none() | st.floats(0.001, 256))
def test_counts_of_any_container(processors: set[int], quota: float | None) -> None:
    """Counts are at least 1, at most what affinity and the quota rounded up allow, distinct, whole cores first."""
    available = len(processors) if quota is None else min(float(len(processors)), quota)
    resources = Resources(
        cores=max(1, int(available)), quota=quota, memory_bytes=1 << 30, affinity=frozenset(processors),
        working_set_bytes=None, cores_source="", memory_source="", warnings=(),
    )  # fmt: skip
    counts = thread_counts(resources)
    assert counts[0] == resources.cores
    assert 1 in counts
    assert len(set(counts)) == len(counts)
    assert all(1 <= count <= len(processors) and count < available + 1 for count in counts)


@pytest.mark.parametrize("best", every_plan(), ids=lambda plan: f"{plan.threads}-{plan.precision}-{plan.memory_format}")
def test_a_knob_turns_itself_alone(best: Plan) -> None:
    """What a knob yields differs from the best plan, and only in the fields of that knob."""
    for knob, fields in zip(knobs((1, 2, 3)), KNOB_FIELDS, strict=True):
        for plan in knob(best):
            assert set() < changed(plan, best) <= fields


def test_every_other_thread_count_is_tried() -> None:
    """The thread knob yields each count but that of the best plan, in their order."""
    _, thread_count = knobs((2, 3, 1))
    assert [plan.threads for plan in thread_count(Plan(threads=3, micro_batch=32))] == [2, 1]
    assert [plan.threads for plan in thread_count(Plan(threads=7, micro_batch=32))] == [2, 3, 1]


def test_the_default_plan_meets_channels_last_and_bfloat16() -> None:
    """From float32 and contiguous, channels_last is tried in both precisions."""
    precision_and_format, _ = knobs((1,))
    plans = precision_and_format(Plan(threads=1, micro_batch=32))
    assert {(plan.precision, plan.memory_format) for plan in plans} == {
        ("float32", "channels_last"),
        ("bfloat16", "channels_last"),
    }


def test_no_plan_is_tried_twice() -> None:
    """No knob yields a plan twice, because each costs a measurement."""
    for best, knob in product(every_plan(), knobs((1, 2, 3))):
        plans = knob(best)
        assert len(set(plans)) == len(plans)
