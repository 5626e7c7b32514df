"""The signature: one key for equal surroundings and workloads, another where a measurement would not hold."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from calibration.cache import signature as module
from calibration.cache.signature import has_bfloat16, signature
from calibration.result import Knob
from calibration.search.search_space import KNOBS
from training.config.plan import Plan
from training.config.spec import Augmentation, TrainSpec
from training.data.dataset_info import DatasetInfo
from training.system.resources import Resources

SPEC = TrainSpec(dataset="digits", model="cnn", batch_size=32)
OWN = Plan(threads=2, micro_batch=32)
CONTAINER = Resources(
    cores=2, quota=2.5, memory_bytes=2 << 30, affinity=frozenset({0, 1, 2, 3}), working_set_bytes=1 << 20,
    cores_source="/sys/fs/cgroup/cpu.max", memory_source="/sys/fs/cgroup/memory.max", warnings=(),
)  # fmt: skip
DIGITS = DatasetInfo(
    name="digits", path=Path("/cache/digits.safetensors"), shape=(1, 28, 28), classes=10,
    train_count=1500, test_count=297, mean=77.8, std=82.4, sources=(),
)  # fmt: skip
CPUINFO = """\
processor\t: 0
model name\t: Some CPU @ 2.00GHz
cpu MHz\t\t: 2000.000
flags\t\t: fpu sse2 avx2

processor\t: 1
model name\t: Some CPU @ 2.00GHz
cpu MHz\t\t: 1800.000
flags\t\t: fpu sse2 avx2
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root beneath which /proc/cpuinfo describes a processor."""
    return processor(tmp_path, CPUINFO)


def processor(root: Path, cpuinfo: str) -> Path:
    """Write `cpuinfo` beneath `root`, and return `root`."""
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cpuinfo").write_text(cpuinfo)
    return root


def key(
    root: Path, spec: TrainSpec = SPEC, own: Plan = OWN, container: Resources = CONTAINER, info: DatasetInfo = DIGITS
) -> str:
    """Return the key of a signature."""
    return signature(spec, own, container, info, root=root).key


def trials_key(root: Path, spec: TrainSpec = SPEC, own: Plan = OWN, container: Resources = CONTAINER) -> str:
    """Return the key of single measurements."""
    return signature(spec, own, container, DIGITS, root=root).trials_key


def test_equal_inputs_have_one_key(root: Path) -> None:
    """Equal inputs, made anew, have the same key: 128 bits in hex."""
    again = TrainSpec(dataset="digits", model="cnn", batch_size=32, augmentation=Augmentation())
    assert key(root) == key(root, again, Plan(threads=2, micro_batch=32), replace(CONTAINER), replace(DIGITS))
    assert re.fullmatch(r"[0-9a-f]{32}", key(root))


@pytest.mark.parametrize(
    "change",
    [
        lambda container: replace(container, quota=2.6),
        lambda container: replace(container, quota=None),
        lambda container: replace(container, memory_bytes=(2 << 30) - 4096),
        lambda container: replace(container, cores=1),
        lambda container: replace(container, affinity=frozenset({0, 1, 2})),
    ],
    ids=["quota", "no quota", "memory", "cores", "affinity"],
)
def test_other_limits_have_another_key(root: Path, change: Callable[[Resources], Resources]) -> None:
    """Each limit of the container is part of the key."""
    assert key(root, container=change(CONTAINER)) != key(root)


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: replace(spec, model="resnet18"),
        lambda spec: replace(spec, batch_size=33),
        lambda spec: replace(spec, optimizer="sgd"),
        lambda spec: replace(spec, gradient_clip=1.0),
        lambda spec: replace(spec, validation_samples=10),
        lambda spec: replace(spec, deterministic=True),
        lambda spec: replace(spec, augmentation=Augmentation(rotate_degrees=10)),
        lambda spec: replace(spec, augmentation=Augmentation(noise_probability=0.1)),
    ],
    ids=["model", "batch_size", "optimizer", "clipping", "validation", "deterministic", "rotation", "noise"],
)
def test_another_workload_has_another_key(root: Path, change: Callable[[TrainSpec], TrainSpec]) -> None:
    """Each part of the spec that changes the cost of a step or an epoch is part of the key."""
    assert key(root, change(SPEC)) != key(root)


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: replace(plan, threads=1),
        lambda plan: replace(plan, interop=2),
        lambda plan: replace(plan, micro_batch=16),
        lambda plan: replace(plan, eval_batch=500),
        lambda plan: replace(plan, loader_workers=1),
        lambda plan: replace(plan, precision="bfloat16"),
        lambda plan: replace(plan, memory_format="channels_last"),
        lambda plan: replace(plan, allocator="tuned"),
        lambda plan: replace(plan, affinity="pinned"),
        lambda plan: replace(plan, compile=True),
    ],
    ids=["threads", "interop", "micro", "eval", "workers", "precision", "format", "allocator", "affinity", "compile"],
)
def test_another_baseline_has_another_key(root: Path, change: Callable[[Plan], Plan]) -> None:
    """The whole of the user's own plan is part of the key: what was searched from it may not suit another.

    Single measurements hold all the same: they are of two plans, whichever the search began with.
    """
    assert key(root, own=change(OWN)) != key(root)
    assert trials_key(root, own=change(OWN)) == trials_key(root)


@pytest.mark.parametrize("knobs", [(), ("threads",), KNOBS[:-1]])
def test_other_knobs_have_another_key(root: Path, knobs: tuple[Knob, ...]) -> None:
    """A search that was allowed less may have missed what this one finds; what it measured holds."""
    less = signature(SPEC, OWN, CONTAINER, DIGITS, knobs=knobs, root=root)
    assert less.key != key(root)
    assert less.trials_key == trials_key(root)


def test_the_order_of_the_knobs_is_not_part_of_the_key(root: Path) -> None:
    """They are turned in an order of their own, and once each."""
    again = signature(SPEC, OWN, CONTAINER, DIGITS, knobs=(*reversed(KNOBS), *KNOBS), root=root)
    assert again.key == key(root)


def test_tcmalloc_is_part_of_both_keys(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is installed later, it is worth a search; where it is removed, its plans are not what they were."""
    keys = set()
    for path in (None, Path("/usr/lib/libtcmalloc_minimal.so.4")):
        monkeypatch.setattr(module, "find_tcmalloc", lambda path=path: path)
        keys |= {key(root), trials_key(root)}
    assert len(keys) == 4


def test_single_measurements_depend_on_everything_else(root: Path) -> None:
    """Limits, workload and hardware are part of their key, too, and it is never that of a finding."""
    here = trials_key(root)
    assert re.fullmatch(r"[0-9a-f]{32}", here)
    assert here != key(root)
    assert trials_key(root, replace(SPEC, batch_size=33)) != here
    assert trials_key(root, container=replace(CONTAINER, quota=None)) != here
    assert trials_key(processor(root, CPUINFO.replace("avx2", "avx"))) != here


@pytest.mark.parametrize(
    ("cpuinfo", "has"),
    [
        (CPUINFO, False),
        (CPUINFO.replace("avx2", "avx2 avx512_bf16"), True),
        (CPUINFO.replace("avx2", "amx_bf16"), True),
        ("Features\t: fp asimd bf16\n", True),
        ("Features\t: fp asimd svebf16\n", True),
        (CPUINFO.replace("avx2", "xbf16 bf16x"), False),
        ("", False),
    ],
)
def test_bfloat16_is_what_the_processor_says(tmp_path: Path, cpuinfo: str, has: bool) -> None:
    """By whole flags of x86 and Arm; where nothing is said there is none."""
    assert has_bfloat16(tmp_path) is False
    assert has_bfloat16(processor(tmp_path, cpuinfo)) is has


@pytest.mark.parametrize(
    "change",
    [
        lambda info: replace(info, name="mnist"),
        lambda info: replace(info, shape=(1, 32, 32)),
        lambda info: replace(info, classes=11),
        lambda info: replace(info, train_count=1501),
    ],
    ids=["name", "shape", "classes", "train_count"],
)
def test_another_data_set_has_another_key(root: Path, change: Callable[[DatasetInfo], DatasetInfo]) -> None:
    """What the data set is, and how much of it there is, is part of the key."""
    assert key(root, info=change(DIGITS)) != key(root)


@pytest.mark.parametrize(
    ("before", "after"),
    [("fpu sse2 avx2", "fpu sse2 avx2 avx512_bf16"), ("fpu sse2 avx2", "fpu sse2"), ("Some CPU", "Other CPU")],
    ids=["more flags", "fewer flags", "model"],
)
def test_another_processor_has_another_key(root: Path, before: str, after: str) -> None:
    """Model name and instruction-set flags of the processor are part of the key."""
    here = key(root)
    assert key(processor(root, CPUINFO.replace(before, after))) != here


def test_the_features_of_arm_are_flags(tmp_path: Path) -> None:
    """On ARM, where cpuinfo calls them Features, the flags are part of the key too."""
    here = key(processor(tmp_path, "processor\t: 0\nFeatures\t: fp asimd\n"))
    assert key(processor(tmp_path, "processor\t: 0\nFeatures\t: fp asimd bf16\n")) != here


def test_what_changes_by_itself_is_not_part_of_the_key(root: Path) -> None:
    """Clock rates and the order of flags do not change the key."""
    here = key(root)
    assert key(processor(root, CPUINFO.replace("2000.000", "3100.000"))) == here
    assert key(processor(root, CPUINFO.replace("fpu sse2 avx2", "avx2 fpu sse2"))) == here


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: replace(spec, epochs=50),
        lambda spec: replace(spec, seed=9),
        lambda spec: replace(spec, learning_rate=0.1),
        lambda spec: replace(spec, schedule="cosine"),
        lambda spec: replace(spec, patience=3),
        lambda spec: replace(spec, label_smoothing=0.1),
    ],
    ids=["epochs", "seed", "learning_rate", "schedule", "patience", "label_smoothing"],
)
def test_what_costs_nothing_is_not_part_of_the_key(root: Path, change: Callable[[TrainSpec], TrainSpec]) -> None:
    """What leaves the cost of a step alone leaves the key alone, so that its next job is a cache hit."""
    assert key(root, change(SPEC)) == key(root)


def test_where_things_lie_is_not_part_of_the_key(root: Path) -> None:
    """Paths, the sources of limits, memory in use and which processors are allowed leave the key alone."""
    container = replace(
        CONTAINER, affinity=frozenset({4, 5, 6, 7}), working_set_bytes=None, cores_source="", memory_source="x"
    )
    assert key(root, container=container, info=replace(DIGITS, path=Path("/elsewhere"))) == key(root)


def test_no_cpuinfo_is_no_error(tmp_path: Path) -> None:
    """Without /proc/cpuinfo, or with an empty or undecodable one, there is a key all the same."""
    assert key(tmp_path) == key(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{32}", key(processor(tmp_path, "")))
    (tmp_path / "proc/cpuinfo").write_bytes(b"\xff\xfe\0: \x80\n")
    assert re.fullmatch(r"[0-9a-f]{32}", key(tmp_path))


def test_an_unknown_model_is_no_error(root: Path) -> None:
    """A model that no installed package registers still has a key: the child will say what is wrong."""
    assert key(root, replace(SPEC, model="absent")) != key(root)
