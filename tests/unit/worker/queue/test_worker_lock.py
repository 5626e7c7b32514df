"""The lock of a worker: held as long as it or its supervisor lives, and free the moment both are dead."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from services import wait_until

from worker.queue.worker_lock import DIRECTORY, Presence

WORKER = """
import os, sys, time
from pathlib import Path
from worker.queue.worker_lock import Presence

with Presence(Path(sys.argv[1]), sys.argv[2]):
    if sys.argv[3] == "with supervisor" and os.fork() == 0:
        time.sleep(600)
    print("present", flush=True)
    time.sleep(600)
"""
Start = Callable[..., psutil.Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process that is a worker as far as its lock goes; whatever is left of it is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, kind: str = "alone") -> psutil.Process:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), name, kind],
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "present\n"
        return psutil.Process(process.pid)

    yield start
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        finally:
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def locks(state_dir: Path) -> set[str]:
    return {path.name for path in (state_dir / DIRECTORY).iterdir()}


def kill(process: psutil.Process) -> None:
    process.kill()
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_a_killed_worker_is_found_dead_once(tmp_path: Path, start: Start) -> None:
    """SIGKILL leaves it no time to say so: the kernel frees its lock, and who finds that removes it."""
    worker = start("worker")
    with Presence(tmp_path, "me") as me:
        assert me.dead_before() == frozenset()
        kill(worker)
        assert me.dead_before() == {"worker"}
        assert me.dead_before() == frozenset()
        assert locks(tmp_path) == {"me"}


def test_a_supervisor_outlives_its_worker(tmp_path: Path, start: Start) -> None:
    """As long as it has not died, too, its job is not taken from under it."""
    worker = start("worker", "with supervisor")
    (supervisor,) = worker.children()
    with Presence(tmp_path, "me") as me:
        kill(worker)
        assert supervisor.is_running()
        assert me.dead_before() == frozenset()
        kill(supervisor)
        wait_until(lambda: not supervisor.is_running() or supervisor.status() == psutil.STATUS_ZOMBIE)
        assert me.dead_before() == {"worker"}


def test_a_worker_that_leaves_is_not_found_dead(tmp_path: Path) -> None:
    """It has signed off; nothing of it stays."""
    with Presence(tmp_path, "gone"):
        assert locks(tmp_path) == {"gone"}
    with Presence(tmp_path, "me") as me:
        assert me.dead_before() == frozenset()
        assert locks(tmp_path) == {"me"}


def test_two_workers_on_one_disk_see_each_other_live(tmp_path: Path) -> None:
    """Neither is dead for the other, nor for itself."""
    with Presence(tmp_path, "one") as one, Presence(tmp_path, "two") as two:
        assert one.dead_before() == two.dead_before() == frozenset()
        assert locks(tmp_path) == {"one", "two"}


def test_of_many_that_start_at_once_each_dead_worker_is_found_by_one(tmp_path: Path) -> None:
    """And none of those that start is taken for dead."""
    for turn in range(20):
        directory = tmp_path / str(turn)
        (directory / DIRECTORY).mkdir(parents=True)
        dead = {f"dead-{number}" for number in range(5)}
        for name in dead:
            (directory / DIRECTORY / name).touch()
        barrier, found = threading.Barrier(8, timeout=30), list[str]()

        def look(name: str, directory: Path = directory, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            with Presence(directory, name) as presence:
                found.extend(presence.dead_before())  # noqa: B023 - the threads end within the turn
                barrier.wait()
                assert name in locks(directory)
                barrier.wait()

        threads = [threading.Thread(target=look, args=(f"alive-{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == sorted(dead)


def test_a_worker_that_another_has_found_dead_is_not_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other removes the lock between the opening and the locking of it here."""
    with Presence(tmp_path, "me") as me, Presence(tmp_path, "other") as other:
        lock, found = fcntl.flock, list[frozenset[str]]()
        (tmp_path / DIRECTORY / "dead").touch()

        def find_then_lock(file: int, operation: int) -> None:
            if Path(f"/proc/self/fd/{file}").readlink().name == "dead":
                monkeypatch.undo()
                found.append(other.dead_before())
            lock(file, operation)

        monkeypatch.setattr(fcntl, "flock", find_then_lock)
        assert me.dead_before() == frozenset()
        assert found == [{"dead"}]


def test_a_lock_has_a_name_once_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker that looks just before does not find it free; a link in its place is replaced."""
    lock, seen = fcntl.flock, list[frozenset[str]]()
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / "me").symlink_to(tmp_path / "precious")

    def look_then_lock(file: int, operation: int) -> None:
        monkeypatch.undo()
        with Presence(tmp_path, "other") as other:
            seen.append(other.dead_before())
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", look_then_lock)
    with Presence(tmp_path, "me"):
        assert seen == [frozenset()]
        assert not (tmp_path / "precious").exists()
        with Presence(tmp_path, "third") as third:
            assert third.dead_before() == frozenset()
            assert locks(tmp_path) == {"me", "third"}


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write there cannot have another file locked, removed, or its name told as that of a dead worker."""
    target = tmp_path / "precious"
    target.write_text("precious")
    with Presence(tmp_path, "me") as me:
        (tmp_path / DIRECTORY / "link").symlink_to(target)
        (tmp_path / DIRECTORY / "dangling").symlink_to(tmp_path / "nothing")
        (tmp_path / DIRECTORY / "directory").mkdir()
        assert me.dead_before() == frozenset()
        assert locks(tmp_path) == {"me", "link", "dangling", "directory"}
        assert (target.read_text(), (tmp_path / "nothing").exists()) == ("precious", False)


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """By the error that the worker names its directory with."""
    (tmp_path / DIRECTORY).write_text("a file")
    with pytest.raises(OSError, match="File exists"):
        Presence(tmp_path, "me")


def test_a_lock_is_not_inherited_by_what_is_started(tmp_path: Path) -> None:
    """A training child that outlives its worker by a moment does not keep it alive."""
    with Presence(tmp_path, "worker"):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
        held = [file.path for file in psutil.Process(child.pid).open_files()]
    try:
        assert not any(DIRECTORY in path for path in held)
    finally:
        child.communicate(b"\n")
