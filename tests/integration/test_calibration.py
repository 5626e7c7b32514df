"""Choosing a plan with the real child on real digits: measured, kept, and survived when the child is not well."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from findings import FINDING
from pydantic import JsonValue, TypeAdapter

from calibration import choose
from calibration.cache import PlanCache
from calibration.child import MODULE, REQUEST, CalibrationRequest
from calibration.choose import Choice, Options, Surroundings, choose_plan, samples_for
from calibration.measure import Contender, gradients_agree
from calibration.signature import signature
from training.errors import Cancelled, InvalidConfig
from training.journal import JournalReader
from training.plan import Plan
from training.prepare import prepare
from training.process import ENVELOPE
from training.resources import Resources
from training.spec import TrainSpec
from training.store import StoreInfo, open_store

SPEC = TrainSpec(dataset="digits", model="cnn", batch_size=32, epochs=10_000)
"""Of many epochs, so that a share of the training's time is no bound on a slow machine."""
OWN = Plan(threads=1, micro_batch=32, eval_batch=100)
ONE_CORE = Resources(
    cores=1, quota=None, memory_bytes=4 << 30, affinity=frozenset({0}), working_set_bytes=None,
    cores_source="affinity", memory_source="MemTotal", warnings=(),
)  # fmt: skip
AMPLE = 600.0
"""Seconds that no calibration here needs."""
RACED = ("", "dropped early")
"""Notes of trials that are not a second look at a plan."""
JOURNAL = "calibration-child.jsonl"
REQUEST_FILE = "calibration-child.request.json"
PLAN = TypeAdapter(Plan)

Fields = dict[str, JsonValue]


def nothing() -> None:
    """Do nothing between two looks at the child."""


@dataclass(kw_only=True)
class Scene:
    """Surroundings of the test's own, and what was emitted in them."""

    around: Surroundings
    emitted: list[tuple[str, Fields]] = field(default_factory=list)

    def choose(
        self,
        options: Options,
        *,
        spec: TrainSpec = SPEC,
        own: Plan = OWN,
        tick: Callable[[], None] = nothing,
    ) -> Choice:
        """Choose a plan for digits."""
        return choose_plan(
            spec, own, self.around, options, lambda kind, fields: self.emitted.append((kind, fields)), tick
        )

    def said(self, kind: str) -> list[Fields]:
        """Return the fields of what was emitted under `kind`."""
        return [fields for some_kind, fields in self.emitted if some_kind == kind]

    def warnings(self) -> list[str]:
        """Return the messages of the warnings."""
        return [str(fields["message"]) for fields in self.said("warning")]

    def improvements(self) -> list[Fields]:
        """Return the improvements that the child's journal holds at this moment."""
        try:
            run = ENVELOPE.validate_json((self.around.directory / REQUEST_FILE).read_bytes()).run
        except FileNotFoundError:
            return []
        records = JournalReader(self.around.directory / JOURNAL, run).read()
        return [record.payload for record in records if record.kind == "improve"]

    def request(self) -> CalibrationRequest:
        """Return what the child was asked to do."""
        envelope = ENVELOPE.validate_json((self.around.directory / REQUEST_FILE).read_bytes())
        return REQUEST.validate_json(envelope.body)

    def kept(self) -> Plan | None:
        """Return the plan that the cache holds."""
        entry, _ = self.around.cache.get(signature(SPEC, OWN, self.around.resources, self.around.store))
        return None if entry is None else entry.finding.plan

    def elsewhere(self, name: str) -> "Scene":
        """Return a scene with the same cache and an empty directory for the child's files."""
        directory = self.around.directory / name
        directory.mkdir()
        return Scene(around=replace(self.around, directory=directory))


@pytest.fixture(scope="module")
def calibration_store(tmp_path_factory: pytest.TempPathFactory) -> StoreInfo:
    """The prepared digits."""
    root = tmp_path_factory.mktemp("digits")
    return prepare("digits", root / "data", root / "cache", download=False)


def scene_at(root: Path, store: StoreInfo, environment: Mapping[str, str]) -> Scene:
    """Return a scene with directories beneath `root`."""
    directory = root / "child"
    directory.mkdir()
    cache = PlanCache(root / "cache")
    return Scene(
        around=Surroundings(resources=ONE_CORE, store=store, cache=cache, directory=directory, environment=environment)
    )


@pytest.fixture
def scene(tmp_path: Path, calibration_store: StoreInfo) -> Scene:
    """A scene with an empty cache."""
    return scene_at(tmp_path, calibration_store, dict(os.environ))


SceneWithTorch = Callable[[str], Scene]


@pytest.fixture
def scene_with_torch(scene: Scene, tmp_path: Path) -> SceneWithTorch:
    """Return a function that makes a scene in whose children a program stands in for torch."""

    def with_torch(program: str) -> Scene:
        directory = tmp_path / "modules"
        directory.mkdir()
        (directory / "torch.py").write_text(program)
        paths = os.pathsep.join((str(directory), os.environ.get("PYTHONPATH", "")))
        environment = {**scene.around.environment, "PYTHONPATH": paths}
        return Scene(around=replace(scene.around, environment=environment))

    return with_torch


BROKEN = "raise ImportError('libgomp.so.1: cannot open shared object file')"
STUCK = "import time; time.sleep(600)"


def children() -> Iterator[psutil.Process]:
    """Yield the calibration children of this process."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if MODULE in process.cmdline():
                yield process


@dataclass
class Watch:
    """A tick that does something to the child once, when its time has come, and remembers the process."""

    act: Callable[[int], None]
    due: Callable[[], bool] = lambda: True
    pid: int | None = None

    def __call__(self) -> None:
        for process in children():
            if self.pid is None and self.due():
                self.pid = process.pid
                self.act(process.pid)

    def gone(self) -> bool:
        """Whether the watched process was found, and has been ended and waited for since."""
        return self.pid is not None and not psutil.pid_exists(self.pid)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def cancel(pid: int) -> None:
    raise Cancelled(f"cancelled while {pid} was measuring")


def ignore(pid: int) -> None:
    """Only remember the process."""


def plan_of(fields: Fields) -> Plan:
    """Return the plan of a trial."""
    return PLAN.validate_json(json.dumps(fields["plan"]))


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A calibration that ran to its end."""

    scene: Scene
    choice: Choice


SAMPLES = 4


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, calibration_store: StoreInfo) -> Measured:
    """One calibration with an empty cache and all the time it takes, for every test that only looks at it."""
    scene = scene_at(tmp_path_factory.mktemp("measured"), calibration_store, dict(os.environ))
    return Measured(scene=scene, choice=scene.choose(Options(samples=SAMPLES, seconds=AMPLE)))


def test_the_users_plan_is_measured_first(measured: Measured) -> None:
    """The first trial is the user's own plan, so that there is an answer from then on; others follow."""
    first, *others = measured.scene.said("trial")
    assert plan_of(first) == OWN
    assert first["won"] is True
    assert others
    assert OWN not in [plan_of(trial) for trial in others if trial["note"] in RACED]
    assert measured.scene.warnings() == []


def test_a_trial_says_what_was_measured(measured: Measured) -> None:
    """Each trial has positive figures that fit together, and no plan but the best is measured twice."""
    for trial in measured.scene.said("trial"):
        match trial:
            case {"predicted_epoch_s": float(epoch), "step_s": float(step), "samples_per_s": float(speed)}:
                assert speed == pytest.approx(SPEC.batch_size / step)
                assert epoch > step > 0
            case _:
                raise AssertionError(trial)
    raced = [plan_of(trial) for trial in measured.scene.said("trial") if trial["note"] in RACED]
    assert len(set(raced)) == len(raced)


def test_as_many_steps_are_measured_as_asked_for(measured: Measured) -> None:
    """Options.samples is the number of steps of each trial that was not dropped, never less and never none."""
    assert measured.scene.request().samples == SAMPLES
    for trial in measured.scene.said("trial"):
        assert trial["steps"] == (SAMPLES // 2 if trial["note"] == "dropped early" else SAMPLES)


def test_the_choice_is_a_measured_winner(measured: Measured) -> None:
    """The choice is the last improvement, with that trial's figure, and says how it came about."""
    choice = measured.choice
    assert (choice.source, choice.cache) == ("measured", "miss")
    assert choice.trials == len(measured.scene.said("trial"))
    assert choice.why
    assert choice.import_seconds > 0
    assert choice.calibration_seconds > 0
    *_, last = measured.scene.improvements()
    assert plan_of(last) == choice.plan
    assert last["predicted_epoch_s"] == choice.predicted_epoch_s
    winners = [(plan_of(trial), trial["predicted_epoch_s"]) for trial in measured.scene.said("trial") if trial["won"]]
    assert (choice.plan, choice.predicted_epoch_s) in winners


def test_the_second_choice_is_a_cache_hit(measured: Measured) -> None:
    """The same job in the same surroundings takes the kept plan, and nothing is started or said for it."""
    again = measured.scene.elsewhere("again")
    choice = again.choose(Options())
    assert (choice.source, choice.cache, choice.trials) == ("cache", "hit", 0)
    assert (choice.plan, choice.predicted_epoch_s) == (measured.choice.plan, measured.choice.predicted_epoch_s)
    assert list(again.around.directory.iterdir()) == []
    assert again.emitted == []


@pytest.fixture(scope="module")
def hurried(measured: Measured) -> Measured:
    """A forced calibration with next to no seconds, where the plan of another one is kept."""
    again = measured.scene.elsewhere("hurried")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "GRACE", AMPLE)  # the machine may be slow, and that is not what is looked at
        return Measured(scene=again, choice=again.choose(Options(force=True, samples=1, seconds=0.01)))


def test_force_measures_again(hurried: Measured) -> None:
    """With `force` a child measures although a plan is kept."""
    assert hurried.choice.source == "measured"
    assert hurried.choice.calibration_seconds > 0


def test_the_users_plan_is_measured_whatever_the_budget(hurried: Measured) -> None:
    """With next to no seconds the user's plan is still measured, no further one is begun, and nothing is wrong."""
    (trial,) = hurried.scene.said("trial")
    assert plan_of(trial) == OWN
    assert (hurried.choice.plan, hurried.choice.trials) == (OWN, 1)
    assert hurried.choice.predicted_epoch_s == trial["predicted_epoch_s"]
    assert hurried.scene.warnings() == []


def test_without_calibration_the_users_plan_is_taken(measured: Measured) -> None:
    """With `calibrate=False` the user's plan is taken unmeasured, although another one is kept."""
    again = measured.scene.elsewhere("off")
    choice = again.choose(Options(calibrate=False))
    assert (choice.plan, choice.source, choice.cache) == (OWN, "own", "off")
    assert choice.predicted_epoch_s is None
    assert list(again.around.directory.iterdir()) == []


def test_another_workload_does_not_find_the_plan(measured: Measured) -> None:
    """A plan that was kept for one batch size is not taken for another."""
    again = measured.scene.elsewhere("other")
    broken = Scene(around=replace(again.around, environment={}, directory=again.around.directory / "absent"))
    assert broken.choose(Options(), spec=replace(SPEC, batch_size=64)).source == "own"


CHOOSE_TWICE = """
import os, sys
from pathlib import Path
from dataclasses import replace
from calibration.cache import PlanCache
from calibration.choose import Options, Surroundings, choose_plan
from training.plan import Plan
from training.resources import detect
from training.spec import TrainSpec
from training.store import read_info

store, directory = map(Path, sys.argv[1:])
around = Surroundings(
    resources=replace(detect(), cores=1, affinity=frozenset({0})), store=read_info(store),
    cache=PlanCache(directory / "cache"), directory=directory, environment=dict(os.environ),
)
for _ in range(2):
    choice = choose_plan(
        TrainSpec(dataset="digits", model="cnn", batch_size=32, epochs=10_000), Plan(threads=1, micro_batch=32), around,
        Options(samples=1, seconds=600.0), lambda kind, fields: None, lambda: None,
    )
    print(choice.source, *sorted({"torch", "numpy", "safetensors"} & set(sys.modules)))
"""


def test_the_parent_imports_no_torch(calibration_store: StoreInfo, tmp_path: Path) -> None:
    """Neither measuring nor a cache hit brings torch, numpy or safetensors into the process that chooses."""
    command = [sys.executable, "-P", "-c", CHOOSE_TWICE, str(calibration_store.path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["measured", "cache"]


@pytest.mark.parametrize(
    ("memory_bytes", "samples"),
    [
        (1, 8),
        ((1 << 30) - 1, 8),
        (1 << 30, 12),
        ((2 << 30) - 1, 12),
        (2 << 30, 16),
        ((4 << 30) - 1, 16),
        (4 << 30, 32),
        (1 << 40, 32),
    ],
)
def test_memory_decides_the_samples(memory_bytes: int, samples: int) -> None:
    """Below 1, 2 and 4 GiB of memory 8, 12 and 16 steps are measured of each plan, from there on 32."""
    assert samples_for(memory_bytes) == samples


def test_a_child_is_asked_for_the_samples_of_its_tier(scene_with_torch: SceneWithTorch) -> None:
    """Without the option, the child is asked for as many steps as the container's memory suggests."""
    scene = scene_with_torch(BROKEN)
    small = Scene(around=replace(scene.around, resources=replace(ONE_CORE, memory_bytes=512 << 20)))
    small.choose(Options())
    assert small.request().samples == 8
    scene.choose(Options())
    assert scene.request().samples == 32
    scene.choose(Options(samples=5))
    assert scene.request().samples == 5


def test_a_killed_child_leaves_its_best_plan(scene: Scene) -> None:
    """A child that is killed while it measures leaves its best plan until then, a warning, and nothing kept."""
    watch = Watch(kill, due=lambda: bool(scene.improvements()))
    choice = scene.choose(Options(samples=64, seconds=AMPLE), tick=watch)
    assert watch.gone()
    *_, last = scene.improvements()
    assert (choice.source, choice.plan) == ("measured", plan_of(last))
    assert choice.predicted_epoch_s == last["predicted_epoch_s"]
    (warning,) = scene.warnings()
    assert "signal 9" in warning
    assert scene.kept() is None


def test_a_child_killed_at_once_leaves_the_users_plan(scene: Scene) -> None:
    """A child that is killed before it has measured anything leaves the user's plan, a warning, and nothing kept."""
    watch = Watch(kill)
    choice = scene.choose(Options(), tick=watch)
    assert watch.gone()
    assert (choice.plan, choice.source, choice.trials, choice.predicted_epoch_s) == (OWN, "own", 0, None)
    (warning,) = scene.warnings()
    assert "signal 9" in warning
    assert scene.kept() is None


def test_a_stopped_child_is_ended_at_its_deadline(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that hangs past its deadline is ended, even one that cannot react, and its best plan is taken.

    The clock is moved past the deadline instead of waiting for it: how far a child gets in the meantime would
    depend on the machine.
    """
    late = False

    def stop_and_be_late(pid: int) -> None:
        nonlocal late
        stop(pid)
        late = True

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + (2 * AMPLE if late else 0))
    monkeypatch.setattr(choose, "time", clock)
    watch = Watch(stop_and_be_late, due=lambda: bool(scene.improvements()))
    choice = scene.choose(Options(samples=64, seconds=AMPLE), tick=watch)
    assert watch.gone()
    *_, last = scene.improvements()
    assert (choice.source, choice.plan) == ("measured", plan_of(last))
    (warning,) = scene.warnings()
    assert "budget" in warning
    assert scene.kept() is None


def test_a_child_that_never_starts_is_ended(scene_with_torch: SceneWithTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child whose import of torch hangs is given up, and the user's plan is taken."""
    monkeypatch.setattr(choose, "IMPORT_LIMIT", 0.3)
    scene, watch = scene_with_torch(STUCK), Watch(ignore)
    choice = scene.choose(Options(), tick=watch)
    assert watch.gone()
    assert (choice.plan, choice.source) == (OWN, "own")
    assert len(scene.warnings()) == 1


def test_a_cancellation_ends_the_child(scene_with_torch: SceneWithTorch) -> None:
    """What `tick` raises comes out as it is, and the child is ended first."""
    scene, watch = scene_with_torch(STUCK), Watch(cancel)
    with pytest.raises(Cancelled, match="while"):
        scene.choose(Options(), tick=watch)
    assert watch.gone()
    assert scene.emitted == []
    assert scene.kept() is None


def test_a_cancellation_is_heard_when_the_directory_is_gone(scene_with_torch: SceneWithTorch) -> None:
    """A cancellation comes out even when the child's files have been deleted meanwhile."""
    scene = scene_with_torch(STUCK)

    def delete_and_cancel(pid: int) -> None:
        for path in scene.around.directory.iterdir():
            path.unlink()
        cancel(pid)

    watch = Watch(delete_and_cancel)
    with pytest.raises(Cancelled):
        scene.choose(Options(), tick=watch)
    assert watch.gone()


def test_an_unusable_spec_is_the_jobs_failure(scene: Scene) -> None:
    """A batch larger than the data set is no failure of calibration: it comes out as InvalidConfig, field named."""
    spec = replace(SPEC, batch_size=5000)
    with pytest.raises(InvalidConfig, match="5000") as caught:
        scene.choose(Options(), spec=spec, own=replace(OWN, micro_batch=5000))
    assert caught.value.field == "batch_size"
    assert list(children()) == []


def test_without_torch_the_users_plan_is_taken(scene_with_torch: SceneWithTorch) -> None:
    """Where torch cannot be imported, the warning names the cause and the user's plan is taken."""
    scene = scene_with_torch(BROKEN)
    choice = scene.choose(Options())
    assert (choice.plan, choice.source, choice.trials, choice.cache) == (OWN, "own", 0, "miss")
    (warning,) = scene.warnings()
    assert "libgomp.so.1: cannot open shared object file" in warning
    assert scene.kept() is None


def test_a_damaged_cache_is_said_and_measured_over(scene_with_torch: SceneWithTorch) -> None:
    """A damaged entry is a warning of its own, and the child is started as if there were none."""
    scene = scene_with_torch(BROKEN)
    key = signature(SPEC, OWN, scene.around.resources, scene.around.store)
    assert scene.around.cache.put(key, FINDING) is None
    (entry,) = (scene.around.directory.parent / "cache").rglob("*.json")
    entry.write_bytes(entry.read_bytes()[:-20])
    scene.choose(Options())
    damaged, ended = scene.warnings()
    assert str(entry) in damaged
    assert "ended early" in ended


def test_an_unwritable_directory_leaves_the_users_plan(scene: Scene, tmp_path: Path) -> None:
    """Where the child's files cannot be, nothing is started, a warning says so, and the user's plan is taken."""
    (tmp_path / "file").write_bytes(b"")
    nowhere = Scene(around=replace(scene.around, directory=tmp_path / "file" / "child"))
    choice = nowhere.choose(Options())
    assert (choice.plan, choice.source) == (OWN, "own")
    (warning,) = nowhere.warnings()
    assert "Not a directory" in warning


def test_a_full_disk_leaves_the_users_plan(scene: Scene) -> None:
    """On a full disk (the request goes to /dev/full) a warning says so, and the user's plan is taken."""
    (scene.around.directory / REQUEST_FILE).symlink_to("/dev/full")
    choice = scene.choose(Options())
    assert (choice.plan, choice.source) == (OWN, "own")
    (warning,) = scene.warnings()
    assert "No space left on device" in warning


def test_an_unreadable_journal_leaves_the_users_plan(scene: Scene) -> None:
    """Where the journal can be neither written nor read (a directory is in its place), the user's plan is taken."""
    (scene.around.directory / JOURNAL).mkdir()
    choice = scene.choose(Options())
    assert (choice.plan, choice.source) == (OWN, "own")
    assert scene.warnings()
    assert list(children()) == []


def test_an_unwritable_cache_does_not_lose_the_plan(scene: Scene, tmp_path: Path) -> None:
    """A measured plan that cannot be kept is used all the same, with a warning."""
    (tmp_path / "occupied").write_bytes(b"")
    uncached = Scene(around=replace(scene.around, cache=PlanCache(tmp_path / "occupied")))
    choice = uncached.choose(Options(samples=1, seconds=AMPLE, force=True))
    assert choice.source == "measured"
    (warning,) = uncached.warnings()
    assert "measure again" in warning


ALLOCATOR = """
import ctypes, sys
from pathlib import Path
import torch
from calibration.child import REQUEST, calibrate
from training.journal import JournalWriter

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Mallinfo

def maps_large_tensors():
    before = mallinfo().hblks
    large = torch.empty(64 << 20, dtype=torch.uint8)
    return mallinfo().hblks > before

print(maps_large_tensors())
with JournalWriter(Path(sys.argv[2]), "run") as journal:
    calibrate(REQUEST.validate_json(sys.argv[1]), journal, lambda: False)
print(maps_large_tensors())
"""


def test_a_tuned_baseline_is_measured_tuned(calibration_store: StoreInfo, tmp_path: Path) -> None:
    """Where the user's own plan has the tuned allocator, the child has tuned it: large tensors are not mapped."""
    request = CalibrationRequest(
        spec=SPEC, baseline=replace(OWN, allocator="tuned"), threads=(1,), samples=1, seconds=0,
        store=calibration_store.path,
    )  # fmt: skip
    command = [sys.executable, "-P", "-c", ALLOCATOR, REQUEST.dump_json(request).decode(), str(tmp_path / "journal")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["True", "False"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread, and give it back those it had."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("batch_size", [32, 128])
@pytest.mark.usefixtures("one_thread")
def test_bfloat16_passes_the_parity_gate(calibration_store: StoreInfo, batch_size: int) -> None:
    """The gradients of cnn in bfloat16 on real digits agree with float32, whatever the seed."""
    store = open_store(calibration_store.path)
    reference = replace(OWN, micro_batch=batch_size, memory_format="channels_last")
    for seed in range(3):
        spec = replace(SPEC, batch_size=batch_size, seed=seed)
        assert gradients_agree(Contender(spec, reference, store), replace(reference, precision="bfloat16"))
