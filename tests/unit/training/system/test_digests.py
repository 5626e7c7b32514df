"""Hashing gives signs of life, and what was hashed is not hashed again while it looks unchanged."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from preflight.files.atomic_files import BLOCK
from training.system import digests as module
from training.system.digests import Digests


class Beats:
    """Counts signs of life, one for each block that is hashed."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def beats() -> Beats:
    return Beats()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(4 * BLOCK + 7))
    return path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files count as settled at once, which takes two seconds otherwise."""
    monkeypatch.setattr(module, "SETTLED_NS", 0)


def sha256(digests: Digests, path: Path, start: int = 0) -> str:
    with path.open("rb") as file:
        file.seek(start)
        return digests.sha256(file)


def test_every_block_is_a_sign_of_life(file: Path, beats: Beats) -> None:
    """The digest is that of all that follows, wherever it begins."""
    digests = Digests(alive=beats)
    assert sha256(digests, file) == hashlib.sha256(file.read_bytes()).hexdigest()
    assert beats.count == 5
    assert sha256(digests, file, 10) == hashlib.sha256(file.read_bytes()[10:]).hexdigest()


def test_what_a_sign_of_life_raises_ends_the_hashing(file: Path) -> None:
    """A cancellation is heard before the end of a large file."""

    def cancelled() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        sha256(Digests(alive=cancelled), file)


@pytest.mark.usefixtures("settled")
def test_an_unchanged_file_is_hashed_once(file: Path, beats: Beats) -> None:
    """By one process, and by another that was given the verdict; from another place on it is another digest."""
    digests = Digests(alive=beats)
    first = sha256(digests, file)
    assert sha256(digests, file) == first
    assert sha256(Digests(digests.known(), beats), file) == first
    assert beats.count == 5
    assert sha256(digests, file, 1) != first


def in_place(path: Path) -> None:
    """Change some bytes, and set the time of the change back."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(bytes(range(100)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(path: Path) -> None:
    before, other = path.stat(), path.with_name("other")
    other.write_bytes(os.urandom(before.st_size))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("change", [in_place, replaced])
def test_a_changed_file_is_hashed_again(file: Path, beats: Beats, change: Callable[[Path], None]) -> None:
    """Size and mtime of the verified file do not hide it."""
    digests = Digests(alive=beats)
    first = sha256(digests, file)
    change(file)
    second = sha256(Digests(digests.known(), beats), file)
    assert second == hashlib.sha256(file.read_bytes()).hexdigest() != first
    assert beats.count == 10


def test_the_verdict_on_a_file_that_was_just_written_is_not_kept(file: Path) -> None:
    """A change within the same tick of the file system's clock would not show."""
    digests = Digests()
    sha256(digests, file)
    assert digests.known() == ()


@pytest.mark.usefixtures("settled")
def test_the_verdict_on_a_file_that_changes_meanwhile_is_not_kept(file: Path) -> None:
    """It is of neither content."""

    def grow() -> None:
        if file.stat().st_size < 5 * BLOCK:
            with file.open("ab") as more:
                more.write(bytes(BLOCK))

    digests = Digests(alive=grow)
    sha256(digests, file)
    assert digests.known() == ()
