"""What dead processes leave on disk goes in time; what a live one uses stays, whatever the clock says."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from services import wait_until

from training.system.locks import REMOVED
from worker.config.settings import Settings
from worker.jobs.paths import STAGING, places
from worker.ops import janitor as module
from worker.ops.janitor import ABANDONED, Janitor

DAY = 86_400.0


def settings_in(directory: Path, **fields: int | Path) -> Settings:
    roots = {name: directory / name for name in ("state_dir", "artifact_dir", "cache_dir", "data_dir")}
    return Settings.model_validate({**roots, "state_ttl": 1000, **fields})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose directories are not there yet."""
    return settings_in(tmp_path)


def go_round(settings: Settings) -> None:
    """Have a janitor look at everything once."""
    janitor = Janitor(settings)
    while janitor.due():
        janitor.step()


def age(root: Path, seconds: float) -> None:
    """Make all that lies at `root` look as if it had not been touched for so long."""
    when = time.time() - seconds
    for path in (*root.rglob("*"), root):
        os.utime(path, (when, when), follow_symlinks=False)


def a_dead_job(settings: Settings, job_id: str) -> Path:
    """Leave what a killed attempt leaves; return the directory of its job."""
    with_lock = places(settings, job_id, 1)
    with_lock.staged.mkdir(parents=True)
    (with_lock.staged / "model.safetensors").write_text("x")
    (with_lock.attempt / "checkpoint-000000000001.json").write_text("x")
    with_lock.close()
    return with_lock.job


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


# --- what is left by the dead


def test_checkpoints_of_a_job_outlive_it_for_the_time_to_live(settings: Settings) -> None:
    """That of the newest file counts, two levels deep; published models are not touched."""
    old, young, written = (a_dead_job(settings, name) for name in ("old", "young", "written"))
    (settings.artifact_dir / "old").mkdir()
    age(old, 1100)
    age(young, 900)
    age(written, 1100)
    os.utime(written / "1" / "checkpoint-000000000001.json")
    age(settings.artifact_dir / "old", 10_000)
    go_round(settings)
    assert names(old.parent) == {"young", "written"}
    assert names(settings.artifact_dir) == {STAGING, "old"}


def test_they_go_without_a_restart(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A janitor goes round again and again."""
    monkeypatch.setattr(module, "EVERY", 0.05)
    janitor, job = Janitor(settings), a_dead_job(settings, "failed")
    while janitor.due():
        janitor.step()
        assert job.exists()
        if janitor._next:
            break
    age(job, 1100)
    wait_until(janitor.due)
    while janitor.due() and job.exists():
        janitor.step()
    assert not job.exists()


def test_staged_models_do_not_wait_for_the_time_to_live(tmp_path: Path) -> None:
    """Nobody takes them up again: the next attempt stages its own."""
    settings = settings_in(tmp_path, state_ttl=int(7 * DAY))
    job = a_dead_job(settings, "job")
    age(job, 2 * ABANDONED)
    age(settings.artifact_dir / STAGING / "job", 2 * ABANDONED)
    go_round(settings)
    assert names(settings.artifact_dir / STAGING) == set()
    assert job.exists()


def test_a_step_is_short_and_the_next_goes_on(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much there is, a worker takes its next job in between."""
    jobs = [a_dead_job(settings, f"job-{number}") for number in range(10)]
    age(settings.state_dir / "jobs", 1100)
    monkeypatch.setattr(module, "STEP", 0.0)
    janitor = Janitor(settings)
    janitor.step()
    assert sum(job.exists() for job in jobs) == 9
    while janitor.due():
        janitor.step()
    assert not any(job.exists() for job in jobs)


def test_a_removal_that_was_cut_off_is_finished(settings: Settings) -> None:
    """At once: its name says that it was unused."""
    half = settings.state_dir / "jobs" / f"{REMOVED}0"
    (half / "1").mkdir(parents=True)
    (half / "1" / "checkpoint-000000000001.safetensors").write_text("x")
    go_round(settings)
    assert names(settings.state_dir / "jobs") == set()


def test_nothing_stops_it_and_no_link_is_followed(settings: Settings, tmp_path: Path) -> None:
    """Roots that are not there, links, files and pipes among the directories; links neither count nor are followed."""
    go_round(settings)
    job = a_dead_job(settings, "old")
    young = tmp_path / "young"
    young.mkdir()
    (young / "file").write_text("x")
    (job / "fresh").symlink_to(young)
    (job.parent / "elsewhere").symlink_to(young)
    (job.parent / "dangling").symlink_to("/nowhere")
    (job.parent / "file").write_text("x")
    os.mkfifo(job.parent / "pipe")
    age(job.parent, 2000)
    go_round(settings)
    assert names(job.parent) == {"elsewhere", "dangling", "file", "pipe"}
    assert (young / "file").exists()


# --- what the living use


ATTEMPT = """
import sys, time
from pathlib import Path
from worker.jobs.paths import places
from worker.config.settings import Settings
state, artifacts = map(Path, sys.argv[1:])
where = places(Settings(state_dir=state, artifact_dir=artifacts), "job", 1)
where.staged.mkdir()
(where.staged / "model.safetensors").write_text("x")
print("ready", flush=True)
time.sleep(600)
"""
WRITER = """
import sys, time
from pathlib import Path
from training.system.atomic_files import staged
def chunks():
    yield b"x" * 10
    print("ready", flush=True)
    time.sleep(600)
Path(sys.argv[1]).parent.mkdir(parents=True)
with staged(Path(sys.argv[1]), chunks()):
    pass
"""
STORE = """
import sys, time
from pathlib import Path
from training.data import dataset_store as store
from training.data.prepare import prepare
chunks = store._safetensors
def slow_chunks(*arguments):
    yield from chunks(*arguments)
    print("ready", flush=True)
    time.sleep(600)
store._safetensors = slow_chunks
prepare("digits", Path(sys.argv[1]), Path(sys.argv[2]))
"""
DOWNLOAD = """
import socket, sys, time
from pathlib import Path
from torchvision import datasets
from training.data.datasets import MNIST
silent = socket.create_server(("127.0.0.1", 0))
datasets.MNIST.mirrors = [f"http://127.0.0.1:{silent.getsockname()[1]}/"]
import training.data.datasets
training.data.datasets.NETWORK_TIMEOUT_S = 600
download = training.data.datasets.IdxDataset._download
def say_and_download(*arguments):
    print("ready", flush=True)
    download(*arguments)
training.data.datasets.IdxDataset._download = say_and_download
MNIST.load(Path(sys.argv[1]), download=True)
"""
Start = Callable[..., psutil.Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program and wait until it is at work; whatever is left of it is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: Path) -> psutil.Process:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return psutil.Process(process.pid)

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def kill(process: psutil.Process) -> None:
    process.kill()
    process.wait()  # its last thread holds the lock, not its first


@pytest.mark.parametrize("frozen", [False, True], ids=["running", "frozen"])
def test_a_live_neighbour_keeps_its_directories(tmp_path: Path, start: Start, frozen: bool) -> None:
    """The time to live is the shortest and all looks years old; frozen is not dead. After SIGKILL they go."""
    settings = settings_in(tmp_path, state_ttl=60)
    neighbour = start(ATTEMPT, settings.state_dir, settings.artifact_dir)
    if frozen:
        neighbour.send_signal(signal.SIGSTOP)
    roots = settings.state_dir / "jobs", settings.artifact_dir / STAGING
    for root in roots:
        age(root, 1000 * DAY)
    go_round(settings)
    assert [names(root) for root in roots] == [{"job"}, {"job"}]
    kill(neighbour)
    for root in roots:
        age(root, 1000 * DAY)
    go_round(settings)
    assert [names(root) for root in roots] == [set(), set()]


def test_staging_is_protected_where_only_the_models_are_shared(tmp_path: Path, start: Start) -> None:
    """The neighbour has checkpoints on a disk of its own."""
    settings = settings_in(tmp_path)
    start(ATTEMPT, tmp_path / "another disk", settings.artifact_dir)
    age(settings.artifact_dir, 1000 * DAY)
    go_round(settings)
    assert (settings.artifact_dir / STAGING / "job" / "1" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("program", "arguments", "folder", "begins"),
    [
        (WRITER, ["cache_dir/plans/x.json"], "cache_dir/plans", ".x.json."),
        (WRITER, ["state_dir/workers/x"], "state_dir/workers", ".x."),
        (STORE, ["data_dir", "cache_dir"], "cache_dir/datasets", ".digits.safetensors."),
        (DOWNLOAD, ["data_dir"], "data_dir", ".mnist-"),
    ],
    ids=["plan", "presence", "data set", "download"],
)
def test_what_is_written_stays_and_what_was_killed_goes(
    settings: Settings, tmp_path: Path, start: Start, program: str, arguments: list[str], folder: str, begins: str
) -> None:
    """However old it looks, while its writer lives; not while it is young, once that is dead."""
    writer = start(program, *(tmp_path / argument for argument in arguments))
    (tmp_path / folder / "finished").write_text("x")
    age(tmp_path / folder, 1000 * DAY)
    go_round(settings)
    (part,) = names(tmp_path / folder) - {"finished"}
    assert part.startswith(begins)
    kill(writer)
    age(tmp_path / folder, ABANDONED / 2)
    go_round(settings)
    assert names(tmp_path / folder) == {part, "finished"}
    age(tmp_path / folder, 2 * ABANDONED)
    go_round(settings)
    assert names(tmp_path / folder) == {"finished"}
