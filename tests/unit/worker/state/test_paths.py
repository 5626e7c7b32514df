"""Paths of a job's files: beneath their roots, on a writable disk, removed when the job is finished."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue

from preflight.errors import ArtifactError
from preflight.files.locks import remove_unused
from training.artifacts.model_dir import save
from worker.config.settings import Settings
from worker.state.paths import STAGING, attempts, next_attempt, open_paths

NOBODY = 65_534


@pytest.fixture
def roots(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


def settings_in(directory: Path) -> Settings:
    return Settings(state_dir=directory / "state", artifact_dir=directory / "artifacts", cache_dir=directory / "c")


def test_each_attempt_has_its_own_directories(roots: Settings) -> None:
    first, second = open_paths(roots, "j", 1), open_paths(roots, "j", 2)
    assert first.attempt == first.job / "1" == roots.state_dir / "jobs" / "j" / "1"
    assert first.job == second.job
    assert {first.attempt.is_dir(), second.attempt.is_dir()} == {True}
    assert first.artifact == second.artifact == roots.artifact_dir / "j"
    assert first.staged == roots.artifact_dir / STAGING / "j" / "1"
    assert second.staged.parent == first.staged.parent
    assert not first.artifact.exists()


def test_open_paths_keeps_existing_files(roots: Settings) -> None:
    first = open_paths(roots, "j", 1)
    (first.attempt / "checkpoint").write_text("x")
    assert open_paths(roots, "j", 1) == first
    assert (first.attempt / "checkpoint").read_text() == "x"
    assert sorted(path.name for path in first.attempt.iterdir()) == ["checkpoint"]


@pytest.mark.parametrize("level", [
    "state/jobs", "state/jobs/j", "state/jobs/j/1", "artifacts/j", f"artifacts/{STAGING}", f"artifacts/{STAGING}/j",
    f"artifacts/{STAGING}/j/1",
])  # fmt: skip
@pytest.mark.parametrize("dangling", [False, True])
def test_symbolic_links_are_refused_at_every_level(roots: Settings, tmp_path: Path, level: str, dangling: bool) -> None:
    elsewhere, link = tmp_path / "elsewhere", tmp_path / level
    if not dangling:
        elsewhere.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    with pytest.raises(ArtifactError, match="is a symbolic link and is not followed; remove it") as caught:
        open_paths(roots, "j", 1)
    assert caught.value.message.startswith(str(link))
    assert not elsewhere.exists() or not list(elsewhere.iterdir())


def test_the_roots_may_be_symbolic_links(tmp_path: Path) -> None:
    """Whoever deploys the worker chooses them."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "volume")
    assert open_paths(settings_in(tmp_path), "j", 1).attempt.is_dir()
    assert (tmp_path / "volume" / "jobs" / "j" / "1").is_dir()


def mount(directory: Path, *options: str) -> None:
    """Mount a tmpfs, or skip the test."""
    directory.mkdir(exist_ok=True)
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(directory)],  # noqa: S607 - or it is skipped
            check=True, capture_output=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system needs root")


@pytest.fixture(params=["state", "artifacts"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield one of the two roots; unmount it afterwards."""
    directory = tmp_path / str(request.param)
    yield directory
    if directory.is_mount():
        subprocess.run(["umount", str(directory)], check=True)  # noqa: S607 - only after `mount` was found


VARIABLES = {"state": "PREFLIGHT_STATE_DIR", "artifacts": "PREFLIGHT_ARTIFACT_DIR"}


def refusal(directory: Path) -> str:
    with pytest.raises(ArtifactError) as caught:
        open_paths(settings_in(directory), "j", 1)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("option", "reason"), [("ro", "Read-only file system"), ("size=16k", "No space left on device")]
)
def test_an_unwritable_disk_is_reported(root: Path, option: str, reason: str) -> None:
    """Its permission bits allow writing, and on the full disk directories can still be made."""
    mount(root, option)
    if option != "ro":
        (root / "filler").write_bytes(bytes(16 << 10))
    message = refusal(root.parent)
    assert message.startswith(str(root))
    assert f"cannot be written ({reason})" in message
    assert message.endswith(f"make room or set {VARIABLES[root.name]} to a writable directory")


def test_a_file_in_place_of_a_directory_is_reported(root: Path) -> None:
    root.write_text("a file")
    message = refusal(root.parent)
    assert str(root) in message
    assert VARIABLES[root.name] in message


@contextmanager
def as_nobody() -> Iterator[None]:
    """Drop the permissions of root."""
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
def test_a_directory_without_permission_is_reported(name: str, mode: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        with as_nobody():
            (Path(directory) / name).mkdir()
            (Path(directory) / name).chmod(mode)
            message = refusal(Path(directory))
    assert "(Permission denied)" in message
    assert VARIABLES[name] in message


def test_clear_keeps_the_artifact_and_other_jobs(roots: Settings) -> None:
    one, other = open_paths(roots, "j", 1), open_paths(roots, "k", 1)
    last = open_paths(roots, "j", 2)
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


def test_clear_removes_links_and_not_their_targets(roots: Settings, tmp_path: Path) -> None:
    where = open_paths(roots, "j", 1)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (where.attempt / "link").symlink_to(tmp_path / "precious")
    where.clear()
    assert not where.job.exists()
    assert (tmp_path / "precious" / "file").exists()


def test_next_attempt_follows_the_highest_directory(roots: Settings) -> None:
    assert next_attempt(roots, "j") == 1
    for attempt in (1, 2, 10):
        open_paths(roots, "j", attempt)
    for name in ("x", "011", "-20", "²", "٣", "9" * 200, "1.5", " 30"):
        (roots.state_dir / "jobs" / "j" / name).mkdir()
    assert attempts(roots.state_dir / "jobs" / "j") == [1, 2, 10]
    assert next_attempt(roots, "j") == 11
    (roots.state_dir / "jobs" / "k").write_text("a file")  # which `open_paths` reports
    assert next_attempt(roots, "k") == next_attempt(roots, "l") == 1


def test_next_attempt_follows_that_of_the_published_model(roots: Settings) -> None:
    """A lower number could not replace the model."""
    save(roots.artifact_dir / "j", (b"weights",), {"attempt": 4})
    assert next_attempt(roots, "j") == 5
    open_paths(roots, "j", 7)
    assert next_attempt(roots, "j") == 8


@pytest.mark.parametrize("attempt", [10**9, -1, "7", None, 1.5, True])
def test_an_invalid_attempt_in_a_manifest_is_ignored(roots: Settings, attempt: JsonValue) -> None:
    save(roots.artifact_dir / "j", (b"weights",), {"attempt": attempt})
    assert next_attempt(roots, "j") in (1, 2)


def test_directories_are_locked_until_closed(roots: Settings) -> None:
    """After a refusal neither is."""
    where = open_paths(roots, "j", 1)
    for directory in (where.job, where.staged.parent):
        assert not remove_unused(directory)
    where.close()
    where.close()
    for directory in (where.job, where.staged.parent):
        assert remove_unused(directory)
    (roots.artifact_dir / STAGING / "k").write_text("a file")
    with pytest.raises(ArtifactError):
        open_paths(roots, "k", 1)
    assert remove_unused(roots.state_dir / "jobs" / "k")
