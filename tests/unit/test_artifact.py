"""Artifacts: whole or not there, and vouched for by their manifest."""

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import JsonValue

from training.artifact import MANIFEST, MODEL, save, write_atomically
from training.errors import ArtifactError

FACTS: dict[str, JsonValue] = {"metrics": {"test_accuracy": 0.99}}


def contents(directory: Path) -> dict[str, bytes]:
    """Return every file in a directory, hidden ones too."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_manifest_vouches_for_the_model(tmp_path: Path) -> None:
    """It holds the sha256 of the file beside it, its version and the given facts; there is no other file."""
    directory = tmp_path / "deep" / "job"
    artifact = save(directory, b"weights", FACTS)
    assert contents(directory).keys() == {MODEL, MANIFEST}
    digest = hashlib.sha256((directory / MODEL).read_bytes()).hexdigest()
    assert (artifact.directory, artifact.model_sha256) == (directory, digest)
    manifest = json.loads((directory / MANIFEST).read_text())
    assert manifest == {"v": 1, "metrics": {"test_accuracy": 0.99}, "sha256": {MODEL: digest}}
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o644}


def test_saving_again_replaces_both(tmp_path: Path) -> None:
    """A job that is run again leaves its second model and the manifest of that."""
    save(tmp_path, b"first", FACTS)
    second = save(tmp_path, b"second", {})
    assert contents(tmp_path)[MODEL] == b"second"
    assert json.loads(contents(tmp_path)[MANIFEST]) == {"v": 1, "sha256": {MODEL: second.model_sha256}}


def test_a_failed_write_leaves_the_old_artifact_and_nothing_else(small_disk: tuple[Path, Callable[[], None]]) -> None:
    """When the disk is full, model and manifest stay as they were, and no temporary file stays behind."""
    disk, make_room = small_disk
    directory = disk / "job"
    save(directory, b"old weights", FACTS)
    before = contents(directory)
    with pytest.raises(ArtifactError, match=f"could not be written to {directory}: (No space left|File too large)"):
        save(directory, b"new weights" * 1000, FACTS)
    assert contents(directory) == before
    make_room()
    save(directory, b"new weights" * 1000, FACTS)
    assert contents(directory)[MODEL] == b"new weights" * 1000


@pytest.mark.parametrize("below", ["", "job", "deep/job"])
def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path, below: str) -> None:
    """At and below a regular file there can be no directory, root's either; the error names it and the setting."""
    (tmp_path / "file").write_text("in the way")
    directory = tmp_path / "file" / below
    with pytest.raises(ArtifactError, match=f"to {directory}: .*PREFLIGHT_ARTIFACT_DIR") as caught:
        save(directory, b"weights", FACTS)
    assert caught.value.retry
    assert (tmp_path / "file").read_text() == "in the way"


WRITER = """
import itertools, sys
from pathlib import Path
from training.artifact import write_atomically
for turn in itertools.cycle((b"a", b"b")):
    write_atomically(Path(sys.argv[1]), turn * (1 << 20))
"""


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    """While another process replaces a file over and over, and after it is killed at it, the file is whole."""
    path = tmp_path / "model"
    whole = {b"a" * (1 << 20), b"b" * (1 << 20)}
    write_atomically(path, b"a" * (1 << 20))
    seen: set[bytes] = set()
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) as writer:
        deadline = time.monotonic() + 60
        while len(seen) < 2 and time.monotonic() < deadline:
            seen.add(path.read_bytes())
        for _ in range(100):
            assert path.read_bytes() in whole
        writer.kill()
    assert seen == whole
    assert path.read_bytes() in whole
