"""The signature: one key for equal surroundings and workloads, another where a measurement would not hold."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from calibration.cache import signature as module
from calibration.cache.signature import Signature, has_bfloat16, signature
from preflight.container.resources import Resources
from preflight.contract.plan import KNOBS, KnobName, Plan
from preflight.contract.spec import Augmentation, TrainSpec
from training.data.dataset_info import DatasetInfo

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


@dataclass(frozen=True)
class Inputs:
    """What a signature is made of."""

    spec: TrainSpec = SPEC
    own: Plan = OWN
    container: Resources = CONTAINER
    info: DatasetInfo = DIGITS
    knobs: tuple[KnobName, ...] = KNOBS

    def signature(self, root: Path) -> Signature:
        return signature(self.spec, self.own, self.container, self.info, knobs=self.knobs, root=root)

    def key(self, root: Path) -> str:
        """Return the key of a finding."""
        return self.signature(root).key

    def trials_key(self, root: Path) -> str:
        """Return the key of single measurements."""
        return self.signature(root).trials_key


HERE = Inputs()


def test_equal_inputs_have_one_key(root: Path) -> None:
    """Equal inputs, made anew, have the same key: 128 bits in hex."""
    spec = TrainSpec(dataset="digits", model="cnn", batch_size=32, augmentation=Augmentation())
    again = Inputs(spec, Plan(threads=2, micro_batch=32), replace(CONTAINER), replace(DIGITS))
    assert HERE.key(root) == again.key(root)
    assert re.fullmatch(r"[0-9a-f]{32}", HERE.key(root))


OTHERS = {
    "container: quota": Inputs(container=replace(CONTAINER, quota=2.6)),
    "container: no quota": Inputs(container=replace(CONTAINER, quota=None)),
    "container: memory": Inputs(container=replace(CONTAINER, memory_bytes=(2 << 30) - 4096)),
    "container: cores": Inputs(container=replace(CONTAINER, cores=1)),
    "container: affinity": Inputs(container=replace(CONTAINER, affinity=frozenset({0, 1, 2}))),
    "spec: model": Inputs(replace(SPEC, model="resnet18")),
    "spec: a model that no package registers": Inputs(replace(SPEC, model="absent")),
    "spec: batch_size": Inputs(replace(SPEC, batch_size=33)),
    "spec: optimizer": Inputs(replace(SPEC, optimizer="sgd")),
    "spec: validation": Inputs(replace(SPEC, validation_samples=10)),
    "spec: epoch_samples": Inputs(replace(SPEC, epoch_samples=320)),
    "spec: train_samples": Inputs(replace(SPEC, train_samples=320)),
    "spec: max_steps within an epoch": Inputs(replace(SPEC, max_steps=10)),
    "spec: deterministic": Inputs(replace(SPEC, deterministic=True)),
    "spec: rotation": Inputs(replace(SPEC, augmentation=Augmentation(rotate_degrees=10))),
    "data set: name": Inputs(info=replace(DIGITS, name="mnist")),
    "data set: train_count": Inputs(info=replace(DIGITS, train_count=1501)),
}
"""Each limit of the container, each part of the spec that changes the cost of a step or an epoch, and the data set."""


@pytest.mark.parametrize("name", OTHERS)
def test_other_inputs_have_another_key(root: Path, name: str) -> None:
    """A model that no installed package registers has a key, too: the child will say what is wrong."""
    assert OTHERS[name].key(root) != HERE.key(root)


def test_a_training_that_ends_after_whole_epochs_has_the_same_key(root: Path) -> None:
    """Its steps and its epochs cost the same, however many there are of them."""
    few, many = (Inputs(replace(SPEC, epochs=epochs, max_steps=steps)) for epochs, steps in ((3, 60), (9, None)))
    assert few.key(root) == many.key(root) == HERE.key(root)


SEARCHES = {
    "from other threads": Inputs(own=replace(OWN, threads=1)),
    "from another micro_batch": Inputs(own=replace(OWN, micro_batch=16)),
    "from another allocator": Inputs(own=replace(OWN, allocator="tcmalloc")),
    "from a compiled plan": Inputs(own=replace(OWN, compile=True)),
    "without knobs": Inputs(knobs=()),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_another_search_has_another_key_and_the_same_trials_key(root: Path, name: str) -> None:
    """A search from another plan, or with fewer knobs, may find another plan; what it measured of two plans holds."""
    assert SEARCHES[name].key(root) != HERE.key(root)
    assert SEARCHES[name].trials_key(root) == HERE.trials_key(root)


def test_tcmalloc_is_part_of_both_keys(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is installed later, it is worth a search; where it is removed, its plans are not what they were."""
    keys = set()
    for path in (None, Path("/usr/lib/libtcmalloc_minimal.so.4")):
        monkeypatch.setattr(module, "find_tcmalloc", lambda path=path: path)
        keys |= {HERE.key(root), HERE.trials_key(root)}
    assert len(keys) == 4


def test_single_measurements_depend_on_everything_else(root: Path) -> None:
    """Limits, workload and hardware are part of their key, too, and it is never that of a finding."""
    here = HERE.trials_key(root)
    assert re.fullmatch(r"[0-9a-f]{32}", here)
    assert here != HERE.key(root)
    assert OTHERS["spec: batch_size"].trials_key(root) != here
    assert OTHERS["container: no quota"].trials_key(root) != here
    assert HERE.trials_key(processor(root, CPUINFO.replace("avx2", "avx"))) != here


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


ARM = "processor\t: 0\nFeatures\t: fp asimd\n"


@pytest.mark.parametrize(
    ("cpuinfo", "changed", "same"),
    [
        pytest.param(CPUINFO, CPUINFO.replace("avx2", "avx2 avx512_bf16"), False, id="more flags"),
        pytest.param(CPUINFO, CPUINFO.replace("sse2 avx2", "sse2"), False, id="fewer flags"),
        pytest.param(ARM, ARM.replace("asimd", "asimd bf16"), False, id="more features of an Arm processor"),
        pytest.param(CPUINFO, CPUINFO.replace("Some CPU", "Other CPU"), False, id="model"),
        pytest.param(CPUINFO, CPUINFO.replace("2000.000", "3100.000"), True, id="clock rate"),
        pytest.param(CPUINFO, CPUINFO.replace("fpu sse2 avx2", "avx2 fpu sse2"), True, id="order of flags"),
    ],
)
def test_the_processor_is_part_of_the_key(tmp_path: Path, cpuinfo: str, changed: str, same: bool) -> None:
    """By its model name and its instruction-set flags, and not by what changes by itself."""
    here = HERE.key(processor(tmp_path, cpuinfo))
    assert (HERE.key(processor(tmp_path, changed)) == here) is same


ALIKE = {
    "epochs": Inputs(replace(SPEC, epochs=50)),
    "seed": Inputs(replace(SPEC, seed=9)),
    "learning_rate": Inputs(replace(SPEC, learning_rate=0.1)),
    "which processors": Inputs(container=replace(CONTAINER, affinity=frozenset({4, 5, 6, 7}))),
    "memory in use": Inputs(container=replace(CONTAINER, working_set_bytes=None)),
    "path of the data set": Inputs(info=replace(DIGITS, path=Path("/elsewhere"))),
    "order of the knobs": Inputs(knobs=(*reversed(KNOBS), *KNOBS)),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_costs_nothing_is_not_part_of_the_key(root: Path, name: str) -> None:
    """What leaves the cost of a step alone leaves the key alone, so that its next job is a cache hit."""
    assert ALIKE[name].key(root) == HERE.key(root)


def test_no_cpuinfo_is_no_error(tmp_path: Path) -> None:
    """Without /proc/cpuinfo, or with an empty or undecodable one, there is a key all the same."""
    assert HERE.key(tmp_path) == HERE.key(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{32}", HERE.key(processor(tmp_path, "")))
    (tmp_path / "proc/cpuinfo").write_bytes(b"\xff\xfe\0: \x80\n")
    assert re.fullmatch(r"[0-9a-f]{32}", HERE.key(tmp_path))
