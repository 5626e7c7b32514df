"""Where the files of a job lie: beneath their roots, on a disk that takes them, and no longer than they are needed."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue

from training.artifacts.publish import save
from training.errors import ArtifactError
from training.system.locks import remove_unused
from worker.config.settings import Settings
from worker.jobs.paths import STAGING, attempts, next_attempt, places

NOBODY = 65_534


@pytest.fixture
def roots(tmp_path: Path) -> Settings:
    """Settings whose directories are not there yet."""
    return settings_in(tmp_path)


def settings_in(directory: Path, **fields: int) -> Settings:
    return Settings.model_validate(
        {
            "state_dir": directory / "state",
            "artifact_dir": directory / "artifacts",
            "cache_dir": directory / "c",
            **fields,
        }
    )


def test_each_attempt_has_a_place_of_its_own(roots: Settings) -> None:
    """Beneath that of its job; the model is staged on the disk that it will be published on."""
    first, second = places(roots, "j", 1), places(roots, "j", 2)
    assert first.attempt == first.job / "1" == roots.state_dir / "jobs" / "j" / "1"
    assert first.job == second.job
    assert {first.attempt.is_dir(), second.attempt.is_dir()} == {True}
    assert first.artifact == second.artifact == roots.artifact_dir / "j"
    assert first.staged == roots.artifact_dir / STAGING / "j" / "1"
    assert second.staged.parent == first.staged.parent
    assert not first.artifact.exists()


def test_places_may_be_there_already(roots: Settings) -> None:
    """A second look finds the same, and leaves what lies there."""
    first = places(roots, "j", 1)
    (first.attempt / "checkpoint").write_text("x")
    assert places(roots, "j", 1) == first
    assert (first.attempt / "checkpoint").read_text() == "x"
    assert sorted(path.name for path in first.attempt.iterdir()) == ["checkpoint"]


LEVELS: dict[str, Callable[[Settings], Path]] = {
    "all jobs": lambda roots: roots.state_dir / "jobs",
    "job": lambda roots: roots.state_dir / "jobs" / "j",
    "attempt": lambda roots: roots.state_dir / "jobs" / "j" / "1",
    "staging": lambda roots: roots.artifact_dir / STAGING,
    "staged job": lambda roots: roots.artifact_dir / STAGING / "j",
    "staged attempt": lambda roots: roots.artifact_dir / STAGING / "j" / "1",
    "artifact": lambda roots: roots.artifact_dir / "j",
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_is_followed_at_no_level(roots: Settings, tmp_path: Path, level: str, dangling: bool) -> None:
    """One sentence names it, and nothing is written where it leads."""
    elsewhere, link = tmp_path / "elsewhere", LEVELS[level](roots)
    if not dangling:
        elsewhere.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    with pytest.raises(ArtifactError, match="is a symbolic link and is not followed; remove it") as caught:
        places(roots, "j", 1)
    assert caught.value.message.startswith(str(link))
    assert not elsewhere.exists() or not list(elsewhere.iterdir())


def test_the_roots_themselves_may_be_links(tmp_path: Path) -> None:
    """Whoever sets the worker up chooses them."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "volume")
    assert places(settings_in(tmp_path), "j", 1).attempt.is_dir()
    assert (tmp_path / "volume" / "jobs" / "j" / "1").is_dir()


def mount(directory: Path, *options: str) -> None:
    """Mount a file system; skips the test where that is not allowed."""
    directory.mkdir(exist_ok=True)
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(directory)],  # noqa: S607 - or it is skipped
            check=True, capture_output=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system needs root")


def unmount(directory: Path) -> None:
    subprocess.run(["umount", str(directory)], check=True)  # noqa: S607 - only after `mount` was found


@pytest.fixture(params=["state", "artifacts"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """One of the two roots, taken away again where something was mounted there."""
    directory = tmp_path / str(request.param)
    yield directory
    if directory.is_mount():
        unmount(directory)


VARIABLES = {"state": "PREFLIGHT_STATE_DIR", "artifacts": "PREFLIGHT_ARTIFACT_DIR"}


def refusal(directory: Path) -> str:
    """Return the one sentence that says why a directory cannot be used."""
    with pytest.raises(ArtifactError) as caught:
        places(settings_in(directory), "j", 1)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_read_only_disk_is_named(root: Path) -> None:
    """With the variable that sets the directory, though its permission bits say that it can be written."""
    mount(root, "ro")
    message = refusal(root.parent)
    assert message.startswith(str(root))
    assert "cannot be written (Read-only file system)" in message
    assert message.endswith(f"make room or set {VARIABLES[root.name]} to a writable directory")


def test_a_full_disk_is_named(root: Path) -> None:
    """Directories can still be made there; what is written into them is not."""
    mount(root, "size=16k")
    (root / "filler").write_bytes(bytes(16 << 10))
    message = refusal(root.parent)
    assert message.startswith(str(root))
    assert "(No space left on device)" in message
    assert VARIABLES[root.name] in message


def test_a_file_in_the_way_is_named(root: Path) -> None:
    """Where a directory should be."""
    root.write_text("a file")
    message = refusal(root.parent)
    assert str(root) in message
    assert VARIABLES[root.name] in message


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up what root may do."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o555, 0o000])
@pytest.mark.parametrize("name", ["state", "artifacts"])
def test_a_directory_without_permission_is_named(name: str, mode: int) -> None:
    """Whether it may only not be written, or not even be looked into."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        with as_nobody():
            (Path(directory) / name).mkdir()
            (Path(directory) / name).chmod(mode)
            message = refusal(Path(directory))
    assert "(Permission denied)" in message
    assert VARIABLES[name] in message


# --- the end


def test_a_finished_job_leaves_its_artifact(roots: Settings) -> None:
    """And nothing else, of none of its attempts; other jobs are not touched."""
    one, other = places(roots, "j", 1), places(roots, "k", 1)
    last = places(roots, "j", 2)
    for where in (one, last, other):
        where.staged.mkdir(parents=True)
        (where.staged / "model").write_text("x")
        (where.attempt / "checkpoint").write_text("x")
    last.artifact.mkdir()
    (last.artifact / "model").write_text("x")
    last.clear()
    last.clear()
    assert [path.name for path in one.job.parent.iterdir()] == ["k"]
    assert [path.name for path in one.staged.parent.parent.iterdir()] == ["k"]
    assert (last.artifact / "model").exists()
    assert (other.attempt / "checkpoint").exists()


def test_clearing_follows_no_link(roots: Settings, tmp_path: Path) -> None:
    """What somebody put there is removed, and not what it leads to."""
    where = places(roots, "j", 1)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (where.attempt / "link").symlink_to(tmp_path / "precious")
    where.clear()
    assert not where.job.exists()
    assert (tmp_path / "precious" / "file").exists()


def test_attempts_are_counted_by_what_they_left(roots: Settings) -> None:
    """The next number is one that none before it had on this disk; other names do not count."""
    assert next_attempt(roots, "j") == 1
    for attempt in (1, 2, 10):
        places(roots, "j", attempt)
    for name in ("x", "011", "-20", "²", "٣", "9" * 200, "1.5", " 30"):
        (roots.state_dir / "jobs" / "j" / name).mkdir()
    assert attempts(roots.state_dir / "jobs" / "j") == [1, 2, 10]
    assert next_attempt(roots, "j") == 11
    assert next_attempt(roots, "k") == 1


def test_attempts_that_cannot_be_read_are_none(roots: Settings) -> None:
    """That the directory is not what it should be is for `places` to say."""
    (roots.state_dir / "jobs").mkdir(parents=True)
    (roots.state_dir / "jobs" / "j").write_text("a file")
    assert next_attempt(roots, "j") == 1


def test_a_job_counts_on_from_the_attempt_of_its_model(roots: Settings) -> None:
    """Where state and Redis are gone, and only the model is left: a lower number could not replace it."""
    save(roots.artifact_dir / "j", b"weights", {"attempt": 4})
    assert next_attempt(roots, "j") == 5
    places(roots, "j", 7)
    assert next_attempt(roots, "j") == 8


@pytest.mark.parametrize("attempt", [10**9, -1, "7", None, 1.5, True])
def test_a_number_that_is_none_is_passed_over(roots: Settings, attempt: JsonValue) -> None:
    """In a manifest that somebody else wrote."""
    save(roots.artifact_dir / "j", b"weights", {"attempt": attempt})
    assert next_attempt(roots, "j") in (1, 2)


def test_places_are_in_use_until_they_are_closed(roots: Settings) -> None:
    """The directory of the job, and that of its staged models; after a refusal neither is."""
    where = places(roots, "j", 1)
    for directory in (where.job, where.staged.parent):
        assert not remove_unused(directory)
    where.close()
    where.close()
    for directory in (where.job, where.staged.parent):
        assert remove_unused(directory)
    (roots.artifact_dir / STAGING / "k").write_text("a file")
    with pytest.raises(ArtifactError):
        places(roots, "k", 1)
    assert remove_unused(roots.state_dir / "jobs" / "k")
