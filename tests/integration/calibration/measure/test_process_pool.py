"""The laboratory with real processes on real digits: what they answer, how they are lost, that none stays behind."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.worker.process_tree import command_line
from support.worker.python_path import with_module

from calibration.measure import process_pool as module
from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.measure.child import MODULE
from calibration.measure.process_pool import ProcessPool, ProcessSettings
from calibration.measure.protocol import BENCH, Bench, Measure
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import Cancelled
from training.data.dataset_info import DatasetInfo

pytestmark = pytest.mark.slow  # processes that hang, die or answer nonsense, one after the other

SPEC = TrainSpec(dataset="digits", model="cnn", batch_size=32)
OWN = Plan(threads=1, micro_batch=32, eval_batch=100)
OTHER = replace(OWN, interop=2)
"""Needs a process of its own."""
BFLOAT16 = replace(OWN, precision="bfloat16")
ENDLESS = 1_000_000
"""Steps that no test waits for."""
MIB = 1 << 20


def processes() -> list[psutil.Process]:
    """Return the measuring processes of this one, the oldest first."""
    found = [process for process in psutil.Process().children(recursive=True) if MODULE in command_line(process)]
    return sorted(found, key=lambda process: process.create_time())


class Tick:
    """Does something at the next look of the parent, once."""

    def __init__(self) -> None:
        self.act: Callable[[], None] | None = None

    def __call__(self) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()


Make = Callable[..., tuple[ProcessPool, Tick]]


@pytest.fixture
def make(digits_store: DatasetInfo, tmp_path: Path) -> Iterator[Make]:
    """Return what makes a laboratory with files of its own; no test leaves a process behind."""
    labs: list[ProcessPool] = []

    def made(spec: TrainSpec = SPEC, environment: Mapping[str, str] | None = None) -> tuple[ProcessPool, Tick]:
        directory = tmp_path / f"lab-{len(labs)}"
        directory.mkdir()
        tick = Tick()
        settings = ProcessSettings(
            store=digits_store.path, directory=directory, environment=environment or dict(os.environ)
        )
        labs.append(ProcessPool(spec, settings, tick))
        return labs[-1], tick

    yield made
    for lab in labs:
        lab.__exit__(None, None, None)
    assert processes() == []


@pytest.fixture
def lab(make: Make) -> ProcessPool:
    return make()[0]


# --- what is answered


def test_as_many_steps_are_measured_as_asked_for(lab: ProcessPool) -> None:
    """A tuner that tests nothing finds anything: each answer has exactly the steps of its question, warm-up apart."""
    for steps, warm in ((1, 2), (5, 0), (3, 0)):
        measured = lab.measure(Measure(plan=OWN, steps=steps, warm_up=2))
        assert (len(measured.seconds), len(measured.warm)) == (steps, warm)
        assert all(second > 0 for second in measured.seconds)
        assert 0 < measured.fetch_s < sum(measured.seconds)
        assert 20 * MIB < measured.peak_bytes < 4096 * MIB
        assert measured.batch_statistics


def test_memory_evaluation_and_gradients_are_answered(lab: ProcessPool) -> None:
    """Each kind of question has its answer, from the same process."""
    small, large = (lab.probe(replace(OWN, micro_batch=size)) for size in (2, 32))
    assert small.peak_bytes > 20 * MIB
    assert 20 * MIB < large.peak_bytes < 4096 * MIB
    assert small.seconds > 0
    assert lab.validate(OWN, 100).sample_s > 0
    assert lab.gauge(OWN).seconds > 0
    assert lab.check(replace(OWN, memory_format="channels_last"), OWN, steps=8, samples=32).cosine > 0.999
    assert len(processes()) == 1


def test_only_settings_need_processes_of_their_own(lab: ProcessPool) -> None:
    """Plans of one setting share a process; of two, they have one each; `isolate` and `restart` end what they say."""
    for plan in (OWN, replace(OWN, memory_format="channels_last"), replace(OWN, threads=2)):
        lab.measure(Measure(plan=plan, steps=1, warm_up=1))
    (first,) = processes()
    lab.measure(Measure(plan=OTHER, steps=1, warm_up=1))
    assert len(processes()) == 2
    lab.isolate(OWN)
    assert processes() == [first]
    assert lab.measure(Measure(plan=OWN, steps=1, warm_up=1)).warm != ()  # it has forgotten what was warm
    lab.restart(OWN)
    assert processes() == []
    assert lab.measure(Measure(plan=OWN, steps=1, warm_up=1)).warm != ()
    assert processes() != [first]


# --- how processes are lost


def test_a_killed_process_is_lost_and_the_next_question_gets_a_new_one(make: Make) -> None:
    """SIGKILL amid a measurement costs that measurement."""
    lab, tick = make()
    lab.measure(Measure(plan=OWN, steps=1, warm_up=1))
    (first,) = processes()
    tick.act = first.kill
    with pytest.raises(WorkerLost, match=r"killed \(SIGKILL\)") as caught:
        lab.measure(Measure(plan=OWN, steps=ENDLESS, warm_up=1))
    assert not caught.value.memory
    assert processes() == []
    measured = lab.measure(Measure(plan=OWN, steps=2, warm_up=1))
    assert (len(measured.seconds), len(measured.warm)) == (2, 1)
    assert processes() != [first]


def test_a_stopped_process_is_ended_at_the_limit(make: Make) -> None:
    """One that cannot even hear SIGTERM is gone, and the next question is answered once there is time again."""
    lab, tick = make()
    lab.measure(Measure(plan=OWN, steps=1, warm_up=1))
    (process,) = processes()

    def stop() -> None:
        process.suspend()
        lab.limit(lab.now())

    tick.act = stop
    with pytest.raises(WorkerLost, match="did not answer in time"):
        lab.measure(Measure(plan=OWN, steps=ENDLESS, warm_up=1))
    assert not process.is_running()
    lab.limit(float("inf"))
    assert len(lab.measure(Measure(plan=OWN, steps=1, warm_up=1)).seconds) == 1


@pytest.mark.parametrize(
    ("torch", "limit", "reason"),
    [
        (
            "raise ImportError('libgomp.so.1: cannot open')",
            module.START_LIMIT,
            "ImportError: libgomp.so.1: cannot open",
        ),
        ("import time; time.sleep(600)", 0.2, "did not answer in time"),
    ],
    ids=["no torch", "an import that hangs"],
)
def test_a_process_that_does_not_start_is_lost(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, limit: float, reason: str
) -> None:
    """What the interpreter said last is what the loss says; the start has a limit of its own."""
    monkeypatch.setattr(module, "START_LIMIT", limit)
    lab, _ = make(environment=with_module(tmp_path / "modules", "torch", torch))
    with pytest.raises(WorkerLost, match=re.escape(reason)):
        lab.measure(Measure(plan=OWN, steps=1, warm_up=1))
    assert processes() == []


PICKY = """
import torch
from torch import nn

class Picky(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(28 * 28, classes)

    def forward(self, images):
        if torch.is_autocast_enabled("cpu"):
            {statement}
        return self.head(images.flatten(1))

def picky(shape, classes):
    return Picky(classes)
"""


def picky(tmp_path: Path, statement: str) -> dict[str, str]:
    """Return an environment with a user's model that does something else in bfloat16."""
    environment = with_module(tmp_path / "modules", "mine", PICKY.format(statement=statement))
    info = tmp_path / "modules" / "mine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[preflight.models]\npicky = mine:picky\n")
    return environment


def test_a_plan_that_does_not_run_costs_no_process(make: Make, tmp_path: Path) -> None:
    """The error's first line is the reason, and the process goes on to answer."""
    environment = picky(tmp_path, "raise RuntimeError('no bfloat16 here\\nand a long story')")
    lab, _ = make(replace(SPEC, model="picky"), environment)
    assert not lab.measure(Measure(plan=OWN, steps=1, warm_up=1)).batch_statistics
    (process,) = processes()
    with pytest.raises(PlanFailed, match=r"^RuntimeError: no bfloat16 here$"):
        lab.measure(Measure(plan=BFLOAT16, steps=1, warm_up=1))
    assert len(lab.measure(Measure(plan=OWN, steps=2, warm_up=1)).seconds) == 2
    assert processes() == [process]


@pytest.mark.parametrize(
    ("statement", "reason", "memory"),
    [
        ("torch.empty(1 << 60, dtype=torch.uint8)", None, True),
        ("raise KeyError('what is this')", "KeyError: 'what is this'", False),
    ],
)
def test_a_crash_is_lost_with_its_last_words(
    make: Make, tmp_path: Path, statement: str, reason: str | None, memory: bool
) -> None:
    """Torch's refusal of memory is told from other errors, as a kill of the kernel's is: a smaller plan may do."""
    lab, _ = make(replace(SPEC, model="picky"), picky(tmp_path, statement))
    lab.measure(Measure(plan=OWN, steps=1, warm_up=1))
    with pytest.raises(WorkerLost, match=reason) as caught:
        lab.measure(Measure(plan=BFLOAT16, steps=1, warm_up=1))
    assert caught.value.memory is memory
    assert processes() == []


def test_an_answer_that_cannot_be_written_is_not_waited_for(make: Make) -> None:
    """A process whose files may not grow ends where it would say that it has begun, instead of saying nothing."""
    lab, tick = make()

    def forbid() -> None:
        (process,) = processes()
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))

    tick.act = forbid
    with pytest.raises(WorkerLost, match="exited with code 1"):
        lab.measure(Measure(plan=OWN, steps=1, warm_up=1))
    assert processes() == []


@pytest.mark.parametrize("reason", ["No space left on device", "Not a directory"])
def test_where_its_files_cannot_be_nothing_is_started(digits_store: DatasetInfo, tmp_path: Path, reason: str) -> None:
    """On a full disk (the question goes to /dev/full), and below a regular file."""
    (tmp_path / "calibration-1.request.json").symlink_to("/dev/full")
    (tmp_path / "file").write_bytes(b"")
    directory = tmp_path if reason == "No space left on device" else tmp_path / "file" / "lab"
    settings = ProcessSettings(store=digits_store.path, directory=directory, environment=dict(os.environ))
    with ProcessPool(SPEC, settings, lambda: None) as lab:
        with pytest.raises(WorkerLost, match=reason):
            lab.probe(OWN)
        assert processes() == []


# --- that none stays


def test_leaving_ends_every_process(lab: ProcessPool) -> None:
    """Those of all settings, and the loader workers that they have started."""
    others = psutil.Process().children(recursive=True)  # Python's own resource tracker, when tests have used loaders
    with lab:
        lab.measure(Measure(plan=replace(OWN, loader_workers=1, prefetch_factor=2), steps=1, warm_up=1))
        lab.measure(Measure(plan=OTHER, steps=1, warm_up=1))
        family = [process for process in psutil.Process().children(recursive=True) if process not in others]
        assert len(family) >= 3
    # All are killed by then; the kernel takes a moment to take back their memory.
    _, left = psutil.wait_procs(family, timeout=10)
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


def test_what_the_tick_raises_ends_everything(make: Make) -> None:
    """A cancellation comes out as it is, amid a measurement, and no process survives it."""
    lab, tick = make()

    def cancel() -> None:
        raise Cancelled("cancelled by its user")

    with pytest.raises(Cancelled, match="by its user"), lab:
        lab.measure(Measure(plan=OWN, steps=1, warm_up=1))
        lab.measure(Measure(plan=OTHER, steps=1, warm_up=1))
        tick.act = cancel
        lab.measure(Measure(plan=OWN, steps=ENDLESS, warm_up=1))
    assert processes() == []


ALLOCATOR = """
import ctypes, sys
from pathlib import Path
import torch
from calibration.measure.child import measure
from calibration.measure.protocol import BENCH
from preflight.files.journal import JournalWriter

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
    measure(BENCH.validate_json(sys.argv[1]), journal, lambda: False)
print(maps_large_tensors())
"""


def test_plans_are_measured_with_glibc_tuned(digits_store: DatasetInfo, tmp_path: Path) -> None:
    """As they are trained: large tensors are not mapped any more."""
    request = BENCH.dump_json(Bench(spec=SPEC, plan=OWN, store=digits_store.path)).decode()
    command = [sys.executable, "-P", "-c", ALLOCATOR, request, str(tmp_path / "journal")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.stdout.split() == ["True", "False"]
