"""Locks that end with their holder: what is used stays, what is not goes, whatever happens at the same moment."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from preflight.files.locks import LOCK, exclusive, locked_temporary, remove_unlocked, remove_unused, use

ROUNDS = 150
"""Times that each process takes the directory into use."""

USER = f"""
import os, sys
from contextlib import closing
from pathlib import Path
from preflight.files.locks import use
directory = Path(sys.argv[1])
for number in range({ROUNDS}):
    with closing(use(directory)):
        mine = directory / f"{{os.getpid()}}-{{number}}"
        mine.write_text("x")
        for _ in range(3):
            assert mine.exists(), "it was removed while it was in use"
        mine.unlink()
"""


def test_a_directory_in_use_is_not_removed(tmp_path: Path) -> None:
    """By any of its users, however many there are; after the last it is, with all that is in it."""
    directory = tmp_path / "job"
    with closing(use(directory)):
        with closing(use(directory)):
            assert not remove_unused(directory)
        assert not remove_unused(directory)
        (directory / "file").write_text("x")
    assert remove_unused(directory)
    assert list(tmp_path.iterdir()) == []
    assert not remove_unused(directory)


def test_a_directory_is_never_taken_from_one_that_begins_to_use_it(tmp_path: Path) -> None:
    """Three real processes begin and end again and again while this one removes what it can."""
    directory = tmp_path / "job"
    users = [subprocess.Popen([sys.executable, "-c", USER, str(directory)]) for _ in range(3)]
    removed = 0
    while any(user.poll() is None for user in users):
        removed += remove_unused(directory)
        time.sleep(0.001)  # else it would hold the lock nearly all the time
    assert [user.wait() for user in users] == [0, 0, 0]
    assert removed > 0
    remove_unused(directory)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_being_written_is_not_removed(tmp_path: Path) -> None:
    """As long as its descriptor is open."""
    file, path = locked_temporary(tmp_path / "model")
    assert path.name.startswith(".model.")
    assert not remove_unlocked(path)
    os.close(file)
    assert remove_unlocked(path)
    assert not path.exists()


def test_a_lock_for_one_is_waited_for(tmp_path: Path) -> None:
    """With signs of life; the file is gone afterwards."""
    beaten, order = threading.Event(), list[str]()

    def second() -> None:
        with exclusive(tmp_path / "one", beaten.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with exclusive(tmp_path / "one", beaten.set):
        thread.start()
        assert beaten.wait(30)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_what_a_sign_of_life_raises_ends_the_waiting(tmp_path: Path) -> None:
    """The holder may be stopped for ever; the one that waits can be cancelled."""

    def cancelled() -> None:
        raise InterruptedError

    with exclusive(tmp_path / "one", cancelled):
        with pytest.raises(InterruptedError), exclusive(tmp_path / "one", cancelled):
            raise AssertionError
        assert (tmp_path / "one").exists()


@pytest.mark.parametrize("place", ["directory", "lock"])
def test_no_link_is_followed(tmp_path: Path, place: str) -> None:
    """A link in place of the lock is refused; one in place of a directory is not what a janitor passes."""
    (tmp_path / "precious").write_text("x")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / LOCK).symlink_to(tmp_path / "precious")
    if place == "lock":
        with pytest.raises(OSError, match="Too many levels"):
            use(tmp_path / "job")
    assert not remove_unused(tmp_path / "job")
    assert not remove_unlocked(tmp_path / "job" / LOCK)
    assert (tmp_path / "precious").read_text() == "x"


def test_without_locks_work_goes_on_and_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has none says so (simulated: none here is mounted without)."""

    def refuse(file: int, operation: int) -> None:  # noqa: ARG001 - flock's signature
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with closing(use(tmp_path / "job")), exclusive(tmp_path / "one", lambda: None):
        file, path = locked_temporary(tmp_path / "model")
        os.close(file)
    assert not remove_unused(tmp_path / "job")
    assert not remove_unlocked(path)
    assert path.exists()
