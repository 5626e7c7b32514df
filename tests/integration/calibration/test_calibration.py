"""Choosing a plan with real processes on real digits: measured, kept, and survived when they are not well."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from pydantic import JsonValue, TypeAdapter
from support.worker.process_tree import command_line
from support.worker.python_path import with_module

from calibration.acceptance.confirmation import CONFIRMING_PAIRS
from calibration.cache.lock import calibration_lock
from calibration.cache.plan_cache import PlanCache
from calibration.cache.signature import Signature, signature
from calibration.cache.trial_log import TrialLog
from calibration.choose import PlanChoice, choose_plan
from calibration.measure.child import MODULE
from calibration.races.baseline import RESTARTS
from calibration.result import Trial
from calibration.task import CalibrationContext, Options, memory_for_training, samples_for
from preflight.container.resources import Resources
from preflight.contract.plan import KNOBS, NEEDED, Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import Cancelled, InvalidConfig
from preflight.files.journal import decode
from training.data.dataset_info import DatasetInfo
from training.process.oom import RESERVE

pytestmark = pytest.mark.slow  # whole calibrations, one after the other

SPEC = TrainSpec(dataset="digits", model="cnn", batch_size=32, epochs=10_000)
"""Of many epochs, so that a share of the training's time is no bound on a slow machine."""
OWN = Plan(threads=1, micro_batch=32, eval_batch=100)
ONE_CORE = Resources(
    cores=1, quota=None, memory_bytes=4 << 30, affinity=frozenset({0}), working_set_bytes=None,
    cores_source="affinity", memory_source="MemTotal", warnings=(),
)  # fmt: skip
AMPLE = 600.0
"""Seconds that no calibration here needs."""
SAMPLES = 4
FEW = Options(samples=1, seconds=AMPLE, knobs=("precision",))
"""A search that is over soon."""
PROCESSES = range(1, RESTARTS + 2)
"""Numbers of the processes that are started where each is lost."""
TRIAL = TypeAdapter(Trial)

Fields = dict[str, JsonValue]


def nothing() -> None:
    """Do nothing between two looks at the processes."""


def key_of(scene: "Scene", options: Options, spec: TrainSpec = SPEC, own: Plan = OWN) -> Signature:
    """Return the key under which a scene keeps what it finds."""
    return signature(spec, own, scene.around.resources, scene.around.store, knobs=options.knobs or KNOBS)


@dataclass(kw_only=True)
class Scene:
    """Surroundings of the test's own, and what was emitted in them."""

    around: CalibrationContext
    emitted: list[tuple[str, Fields]] = field(default_factory=list)

    def choose(
        self, options: Options, *, spec: TrainSpec = SPEC, own: Plan = OWN, tick: Callable[[], None] = nothing
    ) -> PlanChoice:
        return choose_plan(
            spec, own, self.around, options, lambda kind, fields: self.emitted.append((kind, fields)), tick
        )

    def said(self, kind: str) -> list[Fields]:
        """Return the fields of what was emitted under `kind`."""
        return [fields for some_kind, fields in self.emitted if some_kind == kind]

    def warnings(self) -> list[str]:
        return [str(fields["message"]) for fields in self.said("warning")]

    def trials(self) -> list[Trial]:
        return [TRIAL.validate_json(json.dumps(fields)) for fields in self.said("trial")]

    def kept(self, options: Options) -> Plan | None:
        """Return the plan that the cache holds for a search with these options."""
        entry, _ = self.around.cache.get(key_of(self, options))
        return None if entry is None else entry.finding.plan

    def ledger(self, options: Options) -> Path:
        """Return the file of the single measurements."""
        return self.around.cache.trial_log(key_of(self, options))

    def below(self, directory: Path) -> "Scene":
        """Return a scene with the same cache and another directory for the processes' files."""
        return Scene(around=replace(self.around, directory=directory))

    def elsewhere(self, name: str) -> "Scene":
        """Return a scene with the same cache and an empty directory for the processes' files."""
        directory = self.around.directory / name
        directory.mkdir()
        return self.below(directory)

    def with_torch(self, program: str) -> "Scene":
        """Return a scene in whose processes a program stands in for torch."""
        environment = with_module(self.around.cache.directory.parent / "modules", "torch", program)
        return Scene(around=replace(self.around, environment=environment))


def scene_at(root: Path, store: DatasetInfo) -> Scene:
    """Return a scene with directories beneath `root`, and an empty cache."""
    directory = root / "child"
    directory.mkdir()
    around = CalibrationContext(
        resources=ONE_CORE, store=store, cache=PlanCache(root / "cache"), directory=directory,
        environment=dict(os.environ),
    )  # fmt: skip
    return Scene(around=around)


@pytest.fixture
def scene(tmp_path: Path, digits_store: DatasetInfo) -> Scene:
    return scene_at(tmp_path, digits_store)


BROKEN = "raise ImportError('libgomp.so.1: cannot open shared object file')"


def children(of: psutil.Process | None = None) -> Iterator[psutil.Process]:
    """Yield the measuring processes of this process, or of another one."""
    for process in (of or psutil.Process()).children(recursive=True):
        if MODULE in command_line(process):
            yield process


@dataclass
class Watch:
    """A tick that does something to a measuring process once, when its time has come, and remembers it."""

    act: Callable[[psutil.Process], None]
    due: Callable[[], bool] = lambda: True
    process: psutil.Process | None = None

    def __call__(self) -> None:
        if self.process is None and self.due():
            self.process = next(children(), None)
            if self.process is not None:
                self.act(self.process)

    def gone(self) -> bool:
        """Whether a process was found, and has been ended and waited for since."""
        return self.process is not None and not self.process.is_running()


def cancel(process: psutil.Process) -> None:
    raise Cancelled(f"cancelled while {process.pid} was measuring")


class Found(NamedTuple):
    """A calibration that ran to its end."""

    scene: Scene
    choice: PlanChoice


ALL = Options(samples=SAMPLES, seconds=AMPLE, knobs=NEEDED)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, digits_store: DatasetInfo) -> Found:
    """One calibration with an empty cache and all the time it takes, for every test that only looks at it."""
    scene = scene_at(tmp_path_factory.mktemp("measured"), digits_store)
    return Found(scene, scene.choose(ALL))


# --- a calibration that ends well


def test_the_choice_is_what_was_found(measured: Found) -> None:
    """Plan, figure and reason are the finding's; a plan that is not the user's own was confirmed against it."""
    choice, finding = measured.choice, measured.choice.finding
    assert (choice.source, choice.cache, choice.cache_age_s) == ("measured", "miss", None)
    assert choice.trials == sum(trial.ran for trial in measured.scene.trials())
    assert finding is not None
    assert finding.memory is not None
    assert [probe["phase"] for probe in measured.scene.said("probe")] == [one.phase for one in finding.memory.probes]
    assert 0 < choice.import_seconds < finding.calibration_seconds <= choice.calibration_seconds  # waited for the lock
    assert finding.trials == tuple(measured.scene.trials())
    assert (choice.plan, choice.why) == (finding.plan, finding.why)
    assert choice.predicted_epoch_s == finding.prediction.over(SPEC.epochs)
    assert finding.prediction.low_s <= finding.prediction.epoch_s <= finding.prediction.high_s
    assert (finding.baseline, finding.samples, finding.batch_size) == (OWN, SAMPLES, 32)
    assert finding.memory is not None
    assert (finding.memory.max_feasible, finding.memory.capped) == (32, True)
    if choice.plan == OWN:
        assert finding.confirmation is None or not finding.confirmation.proven
    else:
        assert finding.confirmation is not None
        assert finding.confirmation.proven
        assert 1 <= finding.confirmation.pairs <= 2 * CONFIRMING_PAIRS  # twice: probable at first, then proven
        assert choice.plan in [trial.plan for trial in finding.trials if trial.verdict in ("won", "kept")]


def test_nothing_is_left_running_or_suspected(measured: Found) -> None:
    """Its processes are gone, and every attempt is known to have ended."""
    assert list(children()) == []
    with TrialLog(measured.scene.ledger(ALL)) as ledger:
        assert not any(ledger.crashed_before(trial.plan) for trial in measured.scene.trials())


def test_larger_batches_are_measured_where_it_is_asked_for(scene: Scene) -> None:
    """Real steps of real batches, in processes of their own; the advice is kept, and a hit has it."""
    asked = replace(FEW, advise=True)
    choice = scene.choose(asked)
    assert choice.finding is not None
    advice = choice.finding.advice
    assert advice is not None
    sizes = [(trial.batch_size, trial.micro_batch, trial.outcome) for trial in advice.trials]
    assert sizes == [(32, 32, "own"), (64, 64, "measured"), (128, 128, "measured"), (256, 256, "measured")]
    own, *larger = advice.trials
    assert own.peak_bytes
    for trial in larger:
        assert trial.ratio
        assert trial.low
        assert trial.high
        assert 0 < trial.low <= trial.ratio <= trial.high
        assert trial.samples_per_s == pytest.approx(trial.ratio * 32 / choice.finding.prediction.step_s)
        assert trial.peak_bytes
        assert 0 < trial.peak_bytes <= advice.budget_bytes
    assert choice.finding.batch_size == 32
    assert choice.plan.micro_batch <= 32
    hit = scene.elsewhere("again").choose(asked)
    assert hit.cache == "hit"
    assert hit.finding == choice.finding
    with TrialLog(scene.ledger(FEW)) as ledger:
        assert not any(ledger.crashed_before(replace(choice.plan, micro_batch=trial.micro_batch)) for trial in larger)


def test_force_measures_again_whatever_the_budget(measured: Found) -> None:
    """With `force` and next to no seconds the user's plan is measured although one is kept, and nothing is wrong."""
    again = measured.scene.elsewhere("hurried")
    choice = again.choose(replace(ALL, force=True, samples=1, seconds=0.01))
    assert choice.source == "measured"
    (trial,) = [trial for trial in again.trials() if trial.verdict != "skipped"]
    assert (trial.plan, trial.steps) == (OWN, 1)
    assert choice.plan == OWN
    assert choice.finding is not None
    assert choice.finding.confidence == "low"
    assert again.warnings() == []


CHOOSE = """
import pickle, sys
from pathlib import Path
from calibration.choose import choose_plan

spec, own, around, options, times = pickle.loads(Path(sys.argv[1]).read_bytes())
for _ in range(times):
    choice = choose_plan(spec, own, around, options, lambda kind, fields: None, lambda: None)
    print(choice.source, *sorted({"torch", "numpy", "safetensors"} & set(sys.modules)), flush=True)
"""


def choosing(scene: Scene, name: str, *, seconds: float, samples: int, times: int = 1) -> subprocess.Popen[str]:
    """Start a process that chooses a plan, as this one would in the scene with the precision as its only knob."""
    options = replace(FEW, seconds=seconds, samples=samples)
    request = scene.around.cache.directory.parent / f"{name}.pickle"
    request.write_bytes(pickle.dumps((SPEC, OWN, scene.elsewhere(name).around, options, times)))
    command = [sys.executable, "-P", "-c", CHOOSE, str(request)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_parent_imports_no_torch(scene: Scene) -> None:
    """Neither measuring nor a cache hit brings torch, numpy or safetensors into the process that chooses."""
    with choosing(scene, "twice", seconds=AMPLE, samples=1, times=2) as process:
        said, complaint = process.communicate(timeout=120)
    assert (said.splitlines(), complaint) == (["measured", "cache"], "")


def test_of_two_that_calibrate_the_same_one_measures(scene: Scene) -> None:
    """The second waits for the first, and finds what that has found."""
    with (
        choosing(scene, "one", seconds=AMPLE, samples=1) as one,
        choosing(scene, "two", seconds=AMPLE, samples=1) as two,
    ):
        said = [process.communicate(timeout=150)[0].strip() for process in (one, two)]
    assert sorted(said) == ["cache", "measured"]


# --- how much is measured


@pytest.mark.parametrize(
    ("memory_bytes", "samples"),
    [((1 << 30) - 1, 8), (1 << 30, 12), (2 << 30, 16), (4 << 30, 32)],
)
def test_memory_decides_the_samples(memory_bytes: int, samples: int) -> None:
    """Below 1, 2 and 4 GiB of memory 8, 12 and 16 steps are measured of each plan, from there on 32."""
    assert samples_for(memory_bytes) == samples


@pytest.mark.parametrize(
    ("memory_bytes", "in_use", "left"),
    [(4 << 30, None, (4 << 30) - RESERVE), (4 << 30, 1 << 30, (3 << 30) - RESERVE), (100 << 20, None, 90 << 20),
     (1 << 30, 2 << 30, 1)],
)  # fmt: skip
def test_a_training_may_have_what_is_not_in_use(memory_bytes: int, in_use: int | None, left: int) -> None:
    """Less what its supervisor keeps, a tenth in small containers; never nothing."""
    assert memory_for_training(replace(ONE_CORE, memory_bytes=memory_bytes, working_set_bytes=in_use)) == left


# --- processes that are not well


def pending(path: Path) -> Plan | None:
    """Return the plan that a ledger says is being measured at this moment, but for the user's own and its pieces."""
    plan = None
    with suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            record = decode(line, None)
            if record is not None and record.kind in ("attempt", "survived"):
                plan = TypeAdapter(Plan).validate_json(json.dumps(record.payload["plan"]))
                plan = None if record.kind == "survived" or plan.memory_format == OWN.memory_format else plan
    return plan


def test_a_killed_parent_leaves_a_suspect_and_nothing_else(scene: Scene) -> None:
    """SIGKILL of the process that chooses: its measuring ones die, the lock is free, and the plan is on record."""
    ledger = scene.ledger(FEW)
    with choosing(scene, "killed", seconds=60.0, samples=10_000) as process:
        deadline = time.monotonic() + 120
        while (plan := pending(ledger)) is None:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        family = list(children(psutil.Process(process.pid)))
        process.send_signal(signal.SIGKILL)
    assert family
    _, alive = psutil.wait_procs(family, timeout=10)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []
    with calibration_lock(scene.around.cache.directory, nothing, 0.0) as had:
        assert had
    with TrialLog(ledger) as known:
        assert known.crashed_before(plan)
    choice = scene.choose(FEW)
    (crashed_before,) = [trial for trial in scene.trials() if trial.plan == plan]
    assert (crashed_before.verdict, choice.source) == ("failed", "measured")
    assert "crashed" in crashed_before.note


def test_a_cancellation_ends_the_processes(scene: Scene) -> None:
    """What `tick` raises comes out as it is, nothing is kept, nothing suspected, and the lock is free."""
    watch = Watch(cancel, due=lambda: bool(scene.said("trial")))
    options = replace(FEW, samples=10_000, seconds=60.0)
    with pytest.raises(Cancelled, match="while"):
        scene.choose(options, tick=watch)
    assert watch.gone()
    assert list(children()) == []
    assert scene.kept(options) is None
    with calibration_lock(scene.around.cache.directory, nothing, 0.0) as had:
        assert had
    with TrialLog(scene.ledger(options)) as ledger:
        assert not any(ledger.crashed_before(trial.plan) for trial in scene.trials())


def test_an_unusable_spec_is_the_jobs_failure(scene: Scene) -> None:
    """A batch larger than the data set is no failure of calibration: it comes out as InvalidConfig, field named."""
    spec = replace(SPEC, batch_size=5000)
    with pytest.raises(InvalidConfig, match="5000") as caught:
        scene.choose(FEW, spec=spec, own=replace(OWN, micro_batch=5000))
    assert caught.value.field == "batch_size"
    assert list(children()) == []


# --- where nothing can be measured


def kill_all() -> None:
    for process in children():
        process.kill()


def without_a_directory(scene: Scene) -> Scene:
    """Have the processes' files lie below a regular file."""
    (scene.around.directory / "file").write_bytes(b"")
    return scene.below(scene.around.directory / "file" / "child")


def on_a_full_disk(scene: Scene) -> Scene:
    for number in PROCESSES:
        (scene.around.directory / f"calibration-{number}.request.json").symlink_to("/dev/full")
    return scene


def without_a_journal(scene: Scene) -> Scene:
    """Put a directory in its place, which can be neither written nor read."""
    for number in PROCESSES:
        (scene.around.directory / f"calibration-{number}.jsonl").mkdir()
    return scene


@pytest.mark.parametrize(
    ("hinder", "tick", "cause"),
    [
        pytest.param(lambda scene: scene, kill_all, "SIGKILL", id="each process is killed"),
        pytest.param(lambda scene: scene.with_torch(BROKEN), nothing, "libgomp.so.1: cannot open", id="no torch"),
        pytest.param(without_a_directory, nothing, "Not a directory", id="no directory"),
        pytest.param(on_a_full_disk, nothing, "No space left on device", id="full disk"),
        pytest.param(without_a_journal, nothing, "Is a directory", id="no journal"),
    ],
)
def test_what_cannot_be_measured_leaves_the_users_plan(
    scene: Scene, hinder: Callable[[Scene], Scene], tick: Callable[[], None], cause: str
) -> None:
    """A warning names the cause, nothing is kept, and no process stays."""
    hindered = hinder(scene)
    choice = hindered.choose(FEW, tick=tick)
    assert (choice.plan, choice.source, choice.trials, choice.cache) == (OWN, "own", 0, "miss")
    assert choice.predicted_epoch_s is None
    (warning,) = hindered.warnings()
    assert cause in warning
    assert hindered.kept(FEW) is None
    assert list(children()) == []


# --- disks


def test_an_unwritable_cache_does_not_lose_the_plan(scene: Scene, tmp_path: Path) -> None:
    """A measured plan that cannot be kept is used all the same; that it is not, nor a lock to be had, is said."""
    (tmp_path / "occupied").write_bytes(b"")
    uncached = Scene(around=replace(scene.around, cache=PlanCache(tmp_path / "occupied")))
    choice = uncached.choose(replace(FEW, force=True))
    assert choice.source == "measured"
    locked, kept = uncached.warnings()
    assert "lock" in locked
    assert "measure again" in kept
