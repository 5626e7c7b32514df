"""The worker lock: held as long as the worker or its supervisor lives."""

import fcntl
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from support.worker.services import StartProgram, wait_until

from worker.state.worker_lock import DIRECTORY, WorkerLock

WORKER = """
import os, sys, time
from pathlib import Path
from worker.state.worker_lock import WorkerLock

with WorkerLock(Path(sys.argv[1]), sys.argv[2]):
    if sys.argv[3] == "with supervisor" and os.fork() == 0:
        time.sleep(600)
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def start(tmp_path: Path, start_program: StartProgram) -> Callable[..., psutil.Process]:
    """Start a process that holds a worker's lock."""
    return lambda name, kind="alone": start_program(WORKER, tmp_path, name, kind)


def locks(state_dir: Path) -> set[str]:
    return {path.name for path in (state_dir / DIRECTORY).iterdir()}


def kill(process: psutil.Process) -> None:
    process.kill()
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_a_killed_worker_is_found_dead_once(tmp_path: Path, start: Callable[..., psutil.Process]) -> None:
    worker = start("worker")
    with WorkerLock(tmp_path, "me") as me:
        assert me.remove_dead() == frozenset()
        kill(worker)
        assert me.remove_dead() == {"worker"}
        assert me.remove_dead() == frozenset()
        assert locks(tmp_path) == {"me"}


def test_a_worker_is_dead_when_its_supervisor_is_dead_too(tmp_path: Path, start: Callable[..., psutil.Process]) -> None:
    worker = start("worker", "with supervisor")
    (supervisor,) = worker.children()
    with WorkerLock(tmp_path, "me") as me:
        kill(worker)
        assert supervisor.is_running()
        assert me.remove_dead() == frozenset()
        kill(supervisor)
        wait_until(lambda: not supervisor.is_running() or supervisor.status() == psutil.STATUS_ZOMBIE)
        assert me.remove_dead() == {"worker"}


def test_a_worker_that_exits_removes_its_lock(tmp_path: Path) -> None:
    with WorkerLock(tmp_path, "gone"):
        assert locks(tmp_path) == {"gone"}
    with WorkerLock(tmp_path, "me") as me:
        assert me.remove_dead() == frozenset()
        assert locks(tmp_path) == {"me"}


def test_two_workers_on_one_disk_see_each_other_alive(tmp_path: Path) -> None:
    with WorkerLock(tmp_path, "one") as one, WorkerLock(tmp_path, "two") as two:
        assert one.remove_dead() == two.remove_dead() == frozenset()
        assert locks(tmp_path) == {"one", "two"}


def test_concurrent_starts_find_each_dead_worker_once(tmp_path: Path) -> None:
    for turn in range(20):
        directory = tmp_path / str(turn)
        (directory / DIRECTORY).mkdir(parents=True)
        dead = {f"dead-{number}" for number in range(5)}
        for name in dead:
            (directory / DIRECTORY / name).touch()
        barrier, found = threading.Barrier(8, timeout=30), list[str]()

        def look(name: str, directory: Path = directory, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            with WorkerLock(directory, name) as presence:
                found.extend(presence.remove_dead())  # noqa: B023 - the threads end within the turn
                barrier.wait()
                assert name in locks(directory)
                barrier.wait()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(look, [f"alive-{number}" for number in range(8)]))
        assert sorted(found) == sorted(dead)


def test_a_dead_worker_is_found_by_one_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other removes the lock between open and lock."""
    with WorkerLock(tmp_path, "me") as me, WorkerLock(tmp_path, "other") as other:
        lock, found = fcntl.flock, list[frozenset[str]]()
        (tmp_path / DIRECTORY / "dead").touch()

        def find_then_lock(file: int, operation: int) -> None:
            if Path(f"/proc/self/fd/{file}").readlink().name == "dead":
                monkeypatch.undo()
                found.append(other.remove_dead())
            lock(file, operation)

        monkeypatch.setattr(fcntl, "flock", find_then_lock)
        assert me.remove_dead() == frozenset()
        assert found == [{"dead"}]


def test_a_lock_is_named_once_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, seen = fcntl.flock, list[frozenset[str]]()
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / "me").symlink_to(tmp_path / "precious")

    def look_then_lock(file: int, operation: int) -> None:
        monkeypatch.undo()
        with WorkerLock(tmp_path, "other") as other:
            seen.append(other.remove_dead())
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", look_then_lock)
    with WorkerLock(tmp_path, "me"):
        assert seen == [frozenset()]
        assert not (tmp_path / "precious").exists()
        with WorkerLock(tmp_path, "third") as third:
            assert third.remove_dead() == frozenset()
            assert locks(tmp_path) == {"me", "third"}


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    with WorkerLock(tmp_path, "me") as me:
        (tmp_path / DIRECTORY / "link").symlink_to(target)
        (tmp_path / DIRECTORY / "dangling").symlink_to(tmp_path / "nothing")
        (tmp_path / DIRECTORY / "directory").mkdir()
        assert me.remove_dead() == frozenset()
        assert locks(tmp_path) == {"me", "link", "dangling", "directory"}
        assert (target.read_text(), (tmp_path / "nothing").exists()) == ("precious", False)


def test_a_directory_that_is_not_writable_raises(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).write_text("a file")
    with pytest.raises(OSError, match="File exists"):
        WorkerLock(tmp_path, "me")


def test_a_lock_is_not_inherited_by_children(tmp_path: Path) -> None:
    with WorkerLock(tmp_path, "worker"):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
        held = [file.path for file in psutil.Process(child.pid).open_files()]
    try:
        assert not any(DIRECTORY in path for path in held)
    finally:
        child.communicate(b"\n")
