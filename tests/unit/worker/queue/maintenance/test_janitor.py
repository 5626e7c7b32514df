"""The janitor deletes leftovers of dead processes, and never files of live ones, whatever the clock says."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from support.worker.services import StartProgram, wait_until

from preflight.files.locks import REMOVED
from worker.config.settings import Settings
from worker.queue.maintenance import janitor as module
from worker.queue.maintenance.janitor import MIN_AGE_SECONDS, Janitor
from worker.state.paths import STAGING, open_paths

DAY = 86_400.0


def settings_in(directory: Path, **fields: int | Path) -> Settings:
    roots = {name: directory / name for name in ("state_dir", "artifact_dir", "cache_dir", "data_dir")}
    return Settings.model_validate({**roots, "state_ttl": 1000, **fields})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with directories that do not exist yet."""
    return settings_in(tmp_path)


def sweep(settings: Settings) -> None:
    janitor = Janitor(settings)
    while janitor.due():
        janitor.step()


def age(root: Path, seconds: float) -> None:
    """Set the mtime of `root` and all its entries to `seconds` ago."""
    when = time.time() - seconds
    for path in (*root.rglob("*"), root):
        os.utime(path, (when, when), follow_symlinks=False)


def make_dead_job(settings: Settings, job_id: str) -> Path:
    """Create the files of a killed attempt; return the directory of its job."""
    paths = open_paths(settings, job_id, 1)
    paths.staged.mkdir(parents=True)
    (paths.staged / "model.safetensors").write_text("x")
    (paths.attempt / "checkpoint-000000000001.json").write_text("x")
    paths.close()
    return paths.job


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


def test_old_checkpoints_are_deleted(settings: Settings) -> None:
    """The newest file counts, two levels deep; published models stay."""
    old, young, written = (make_dead_job(settings, name) for name in ("old", "young", "written"))
    (settings.artifact_dir / "old").mkdir()
    age(old, 1100)
    age(young, 900)
    age(written, 1100)
    os.utime(written / "1" / "checkpoint-000000000001.json")
    age(settings.artifact_dir / "old", 10_000)
    sweep(settings)
    assert names(old.parent) == {"young", "written"}
    assert names(settings.artifact_dir) == {STAGING, "old"}


def test_sweeps_repeat(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that expires after the first sweep is deleted by the second."""
    monkeypatch.setattr(module, "SWEEP_INTERVAL", 0.05)
    janitor, job = Janitor(settings), make_dead_job(settings, "failed")
    while janitor.due():
        janitor.step()
        assert job.exists()
        if janitor._next_sweep:
            break
    age(job, 1100)
    wait_until(janitor.due)
    while janitor.due() and job.exists():
        janitor.step()
    assert not job.exists()


def test_staged_models_expire_before_checkpoints(tmp_path: Path) -> None:
    """The next attempt stages its own model."""
    settings = settings_in(tmp_path, state_ttl=int(7 * DAY))
    job = make_dead_job(settings, "job")
    age(job, 2 * MIN_AGE_SECONDS)
    age(settings.artifact_dir / STAGING / "job", 2 * MIN_AGE_SECONDS)
    sweep(settings)
    assert names(settings.artifact_dir / STAGING) == set()
    assert job.exists()


def test_a_step_is_short_and_the_next_continues(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker can take its next job between two steps."""
    jobs = [make_dead_job(settings, f"job-{number}") for number in range(10)]
    age(settings.state_dir / "jobs", 1100)
    monkeypatch.setattr(module, "STEP_SECONDS", 0.0)
    janitor = Janitor(settings)
    janitor.step()
    assert sum(job.exists() for job in jobs) == 9
    while janitor.due():
        janitor.step()
    assert not any(job.exists() for job in jobs)


def test_an_interrupted_deletion_is_finished(settings: Settings) -> None:
    """At once: its name shows that it was unused."""
    half = settings.state_dir / "jobs" / f"{REMOVED}0"
    (half / "1").mkdir(parents=True)
    (half / "1" / "checkpoint-000000000001.safetensors").write_text("x")
    sweep(settings)
    assert names(settings.state_dir / "jobs") == set()


def test_odd_entries_are_skipped_and_links_not_followed(settings: Settings, tmp_path: Path) -> None:
    """Missing roots; links, files and pipes among the directories."""
    sweep(settings)
    job = make_dead_job(settings, "old")
    young = tmp_path / "young"
    young.mkdir()
    (young / "file").write_text("x")
    (job / "fresh").symlink_to(young)
    (job.parent / "elsewhere").symlink_to(young)
    (job.parent / "dangling").symlink_to("/nowhere")
    (job.parent / "file").write_text("x")
    os.mkfifo(job.parent / "pipe")
    age(job.parent, 2000)
    sweep(settings)
    assert names(job.parent) == {"elsewhere", "dangling", "file", "pipe"}
    assert (young / "file").exists()


ATTEMPT = """
import sys, time
from pathlib import Path
from worker.state.paths import open_paths
from worker.config.settings import Settings
state, artifacts = map(Path, sys.argv[1:])
where = open_paths(Settings(state_dir=state, artifact_dir=artifacts), "job", 1)
where.staged.mkdir()
(where.staged / "model.safetensors").write_text("x")
print("ready", flush=True)
time.sleep(600)
"""
WRITER = """
import sys, time
from pathlib import Path
from preflight.files.atomic_files import staged
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
chunks = store.safetensors_chunks
def slow_chunks(*arguments):
    yield from chunks(*arguments)
    print("ready", flush=True)
    time.sleep(600)
store.safetensors_chunks = slow_chunks
prepare("digits", Path(sys.argv[1]), Path(sys.argv[2]))
"""
DOWNLOAD = """
import socket, sys, time
from pathlib import Path
from torchvision import datasets
from training.data.builtin.catalog import MNIST
silent = socket.create_server(("127.0.0.1", 0))
datasets.MNIST.mirrors = [f"http://127.0.0.1:{silent.getsockname()[1]}/"]
from training.data.builtin import download, idx_dataset
download.NETWORK_TIMEOUT = 600
def announce_and_download(*arguments):
    print("ready", flush=True)
    download.download(*arguments)
idx_dataset.download = announce_and_download
MNIST.load(Path(sys.argv[1]), download=True)
"""


def kill(process: psutil.Process) -> None:
    process.kill()
    process.wait()  # the lock is held until its last thread ends


@pytest.mark.parametrize("frozen", [False, True], ids=["running", "frozen"])
def test_directories_of_a_live_process_stay(tmp_path: Path, start_program: StartProgram, frozen: bool) -> None:
    """Running or frozen, with the shortest `state_ttl` and old files; they are deleted after SIGKILL."""
    settings = settings_in(tmp_path, state_ttl=60)
    other = start_program(ATTEMPT, settings.state_dir, settings.artifact_dir)
    if frozen:
        other.send_signal(signal.SIGSTOP)
    roots = settings.state_dir / "jobs", settings.artifact_dir / STAGING
    for root in roots:
        age(root, 1000 * DAY)
    sweep(settings)
    assert [names(root) for root in roots] == [{"job"}, {"job"}]
    kill(other)
    for root in roots:
        age(root, 1000 * DAY)
    sweep(settings)
    assert [names(root) for root in roots] == [set(), set()]


def test_staged_models_are_locked_where_only_artifacts_are_shared(tmp_path: Path, start_program: StartProgram) -> None:
    """The other worker has its checkpoints on another disk."""
    settings = settings_in(tmp_path)
    start_program(ATTEMPT, tmp_path / "another disk", settings.artifact_dir)
    age(settings.artifact_dir, 1000 * DAY)
    sweep(settings)
    assert (settings.artifact_dir / STAGING / "job" / "1" / "model.safetensors").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("program", "arguments", "folder", "begins"), [
    (WRITER, ["cache_dir/plans/x.json"], "cache_dir/plans", ".x.json."),
    (WRITER, ["state_dir/workers/x"], "state_dir/workers", ".x."),
    (STORE, ["data_dir", "cache_dir"], "cache_dir/datasets", ".digits.safetensors."),
    (DOWNLOAD, ["data_dir"], "data_dir", ".mnist-"),
], ids=["plan", "worker lock", "data set", "download"])  # fmt: skip
def test_partial_files_go_when_their_writer_is_dead(
    settings: Settings, tmp_path: Path, start_program: StartProgram, program: str, arguments: list[str], folder: str,
    begins: str,
) -> None:  # fmt: skip
    """And when they are old enough."""
    writer = start_program(program, *(tmp_path / argument for argument in arguments))
    (tmp_path / folder / "finished").write_text("x")
    age(tmp_path / folder, 1000 * DAY)
    sweep(settings)
    (part,) = names(tmp_path / folder) - {"finished"}
    assert part.startswith(begins)
    kill(writer)
    age(tmp_path / folder, MIN_AGE_SECONDS / 2)
    sweep(settings)
    assert names(tmp_path / folder) == {part, "finished"}
    age(tmp_path / folder, 2 * MIN_AGE_SECONDS)
    sweep(settings)
    assert names(tmp_path / folder) == {"finished"}
