"""Artifacts: whole or not there, and vouched for by their manifest."""

import hashlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from pydantic import JsonValue
from support.files.damage import Harm, a_pipe, huge, linked, replaced_by
from support.worker.services import wait_until

from preflight.errors import ArtifactError
from preflight.files.atomic_files import write_atomically
from training.artifacts.model_dir import MANIFEST, MODEL, attempt_of, read_manifest, save
from training.artifacts.publish import PUBLISHING, claim_artifact, publish

FACTS: dict[str, JsonValue] = {"metrics": {"test_accuracy": 0.99}}


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_manifest_holds_the_sha256_of_what_lies_beside_it(tmp_path: Path) -> None:
    """With its version and the given facts; saving again replaces the model and its manifest."""
    directory = tmp_path / "deep" / "job"
    first = save(directory, (b"first",), FACTS, {"more": b"and more"})
    assert contents(directory).keys() == {MODEL, MANIFEST, "more"}
    digest = hashlib.sha256(b"first").hexdigest()
    assert (first.directory, first.model_sha256, contents(directory)[MODEL]) == (directory, digest, b"first")
    digests = {MODEL: digest, "more": hashlib.sha256(b"and more").hexdigest()}
    assert json.loads(contents(directory)[MANIFEST]) == {"v": 1, **FACTS, "sha256": digests}
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o644}
    second = save(directory, (b"second",), {})
    assert contents(directory)[MODEL] == b"second"
    assert json.loads(contents(directory)[MANIFEST]) == {"v": 1, "sha256": {MODEL: second.model_sha256}}


def test_a_failed_write_leaves_the_old_artifact_and_nothing_else(small_disk: tuple[Path, Callable[[], None]]) -> None:
    """When the disk is full, model and manifest stay as they were, and no temporary file stays behind."""
    disk, make_room = small_disk
    directory = disk / "job"
    save(directory, (b"old weights",), FACTS)
    before = contents(directory)
    with pytest.raises(ArtifactError, match=f"could not be written to {directory}: (No space left|File too large)"):
        save(directory, (b"new weights" * 1000,), FACTS)
    assert contents(directory) == before
    make_room()
    save(directory, (b"new weights" * 1000,), FACTS)
    assert contents(directory)[MODEL] == b"new weights" * 1000


@pytest.mark.parametrize("below", ["", "job", "deep/job"])
def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path, below: str) -> None:
    """At and below a regular file there can be no directory, root's either; the error names it and the setting."""
    (tmp_path / "file").write_text("in the way")
    directory = tmp_path / "file" / below
    with pytest.raises(ArtifactError, match=f"to {directory}: .*PREFLIGHT_ARTIFACT_DIR") as caught:
        save(directory, (b"weights",), FACTS)
    assert caught.value.retry
    assert (tmp_path / "file").read_text() == "in the way"


WRITER = """
import itertools, sys
from pathlib import Path
from preflight.files.atomic_files import write_atomically
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


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    return tmp_path / "models" / "~staging" / "job" / "1"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "models" / "job"


def manifest_of(directory: Path) -> dict[str, JsonValue]:
    manifest = read_manifest(directory)
    assert manifest is not None
    return manifest


@pytest.mark.parametrize("earlier", [False, True])
def test_a_staged_model_is_published_whole(staged: Path, place: Path, earlier: bool) -> None:
    """Nothing is left in staging, nor of an earlier model, not even files beside its model and manifest."""
    if earlier:
        save(place, (b"old",), FACTS)
        (place / "extra").write_text("of the old one")
    artifact = save(staged, (b"new",), FACTS)
    publish(staged, place)
    assert contents(place).keys() == {MODEL, MANIFEST}
    manifest = manifest_of(place)
    assert (manifest["metrics"], manifest["sha256"]) == (FACTS["metrics"], {MODEL: artifact.model_sha256})
    assert list(staged.parent.iterdir()) == []


def test_what_cannot_be_published_leaves_the_earlier_model(staged: Path, place: Path) -> None:
    """Nothing was staged: the error names both places, and the earlier model is where it was."""
    save(place, (b"old",), FACTS)
    staged.parent.mkdir(parents=True)
    with pytest.raises(ArtifactError, match=f"could not be moved from {staged} to {place}: No such file"):
        publish(staged, place)
    assert read_manifest(place) is not None
    assert list(staged.parent.iterdir()) == []


@pytest.mark.parametrize("link", ["the place", "above the place", "the staged", "above the staged"])
def test_no_link_is_followed_when_publishing(tmp_path: Path, link: str) -> None:
    """A symbolic link beneath the common root is named and refused, and what it points to is left alone."""
    staged, place = tmp_path / "models" / "~staging" / "1", tmp_path / "models" / "deep" / "job"
    save(staged, (b"weights",), FACTS)
    linked = {"the place": place, "above the place": place.parent, "the staged": staged}.get(link, staged.parent)
    target = tmp_path / "target"
    if linked.exists():
        linked.rename(target)
    else:
        target.mkdir()
        linked.parent.mkdir(exist_ok=True)
    linked.symlink_to(target)
    before = sorted(target.rglob("*"))
    with pytest.raises(ArtifactError, match=f"{linked} is a symbolic link and is not followed; remove it"):
        publish(staged, place)
    assert sorted(target.rglob("*")) == before


def test_a_linked_root_is_the_operators_own(tmp_path: Path, staged: Path, place: Path) -> None:
    """That the directory of all models is a link, to a volume say, is no reason to refuse."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "models").symlink_to("volume")
    save(staged, (b"weights",), FACTS)
    publish(staged, place)
    assert read_manifest(tmp_path / "volume" / "job") is not None


REPLACER = """
import itertools, sys
from pathlib import Path
from training.artifacts.model_dir import save
from training.artifacts.publish import publish
staged, place = Path(sys.argv[1]), Path(sys.argv[2])
for turn in itertools.cycle((b"a", b"b")):
    save(staged, (turn * (1 << 18),), {"turn": turn.decode()})
    publish(staged, place)
"""


def test_a_manifest_in_place_means_a_whole_model(staged: Path, place: Path) -> None:
    """While another process publishes over and over, and wherever it is killed, what is in place is whole or absent."""
    command = [sys.executable, "-c", REPLACER, str(staged), str(place)]
    for _ in range(5):
        seen: set[JsonValue] = set()
        with subprocess.Popen(command) as replacer:
            deadline = time.monotonic() + 60
            while not seen >= {"a", "b"} and time.monotonic() < deadline:
                manifest = read_manifest(place)
                seen.add(manifest["turn"] if manifest else None)
            replacer.kill()
        assert seen >= {"a", "b"}
        assert not place.exists() or read_manifest(place) is not None


def of_the(name: str, harm: Harm) -> Harm:
    return lambda place: harm(place / name)


DAMAGE: dict[str, Harm] = {
    "no model": of_the(MODEL, Path.unlink),
    "no manifest": of_the(MANIFEST, Path.unlink),
    "another model": of_the(MODEL, replaced_by(b"other")),
    "a linked model": of_the(MODEL, linked),
    "a linked manifest": of_the(MANIFEST, linked),
    "a linked directory": linked,
    "a pipe as the model": of_the(MODEL, a_pipe),
    "a pipe as the manifest": of_the(MANIFEST, a_pipe),
    "a huge manifest": of_the(MANIFEST, huge),
    "a deep manifest": of_the(MANIFEST, replaced_by(b"[" * 200_000)),
    "a number as a digest": of_the(MANIFEST, replaced_by(b'{"v": 1, "sha256": {"model.safetensors": 3}}')),
    "no digests": of_the(MANIFEST, replaced_by(b'{"v": 1}')),
    "null": of_the(MANIFEST, replaced_by(b"null")),
    "no text": of_the(MANIFEST, replaced_by(b"\xff")),
    "a huge number": of_the(MANIFEST, replaced_by(b'{"x": ' + b"9" * 100_000 + b"}")),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_model_has_no_manifest(tmp_path: Path, name: str) -> None:
    """Missing, changed, linked, endless or nonsensical: None, and no exception."""
    place = tmp_path / "job"
    save(place, (b"weights",), FACTS)
    assert read_manifest(place) is not None
    DAMAGE[name](place)
    assert read_manifest(place) is None


# --- two attempts of one job


FROZEN = """
import os, signal, sys
from pathlib import Path
from training.artifacts import publish as artifact
from training.artifacts.model_dir import save

staged, place, where = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
save(staged, (b"first",), {"attempt": 1})

def freeze():
    os.kill(os.getpid(), signal.SIGSTOP)

replaced, attempt_of, looks = artifact._replaced, artifact.attempt_of, []

def freeze_and_replace(*paths):
    freeze()
    return replaced(*paths)

def look_and_freeze(directory):
    looks.append(attempt_of(directory))
    if len(looks) == 2:
        freeze()
    return looks[-1]

if where == "before the lock":
    freeze()
elif where == "within the lock":
    artifact._replaced = freeze_and_replace
elif where == "after the look at what is there":
    artifact.attempt_of = look_and_freeze
print(artifact.publish(staged, place))
"""


@contextmanager
def frozen(staged: Path, place: Path, where: str) -> Iterator["subprocess.Popen[str]"]:
    """Run an attempt that is stopped between being certain that it is the newest and the renames."""
    command = [sys.executable, "-c", FROZEN, str(staged), str(place), where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
            yield process
        finally:
            process.kill()


def wake(process: "subprocess.Popen[str]") -> str:
    """Let a frozen attempt go on; return what it says about its publishing."""
    process.send_signal(signal.SIGCONT)
    return process.communicate(timeout=60)[0].strip()


def weights(place: Path) -> bytes:
    manifest_of(place)
    return (place / MODEL).read_bytes()


def test_an_attempt_that_wakes_up_does_not_replace_its_successors_model(staged: Path, place: Path) -> None:
    """SIGSTOP before the renames, the successor publishes, SIGCONT: its model stays, and the first is told so."""
    with frozen(staged, place, "before the lock") as first:
        save(staged.with_name("2"), (b"second",), {"attempt": 2})
        assert publish(staged.with_name("2"), place)
        assert wake(first) == "False"
    assert weights(place) == b"second"


def test_without_a_common_lock_the_later_model_comes_back(staged: Path, place: Path) -> None:
    """As on a network disk that took the lock from a frozen host: what it has moved aside, it puts back."""
    save(place, (b"earlier",), {"attempt": 0})
    with frozen(staged, place, "after the look at what is there") as first:
        (staged.parent / PUBLISHING).unlink()
        save(staged.with_name("2"), (b"second",), {"attempt": 2})
        assert publish(staged.with_name("2"), place)
        assert wake(first) == "False"
    assert weights(place) == b"second"


def test_one_attempt_publishes_at_a_time(staged: Path, place: Path) -> None:
    """The successor waits, with signs of life, while the first is stopped amid its renames; then it replaces that."""
    beaten, published = threading.Event(), list[bool]()
    with frozen(staged, place, "within the lock") as first:
        save(staged.with_name("2"), (b"second",), {"attempt": 2})
        second = threading.Thread(target=lambda: published.append(publish(staged.with_name("2"), place, beaten.set)))
        second.start()
        assert beaten.wait(30)
        assert not place.exists()
        assert wake(first) == "True"
        second.join()
    assert published == [True]
    assert weights(place) == b"second"


@pytest.mark.parametrize(("there", "mine", "replaced"), [(1, 2, True), (2, 2, True), (3, 2, False), (None, 1, True)])
def test_only_a_higher_attempt_stays(staged: Path, place: Path, there: int | None, mine: int, replaced: bool) -> None:
    """A model of the same attempt, or of one that does not say, is replaced."""
    save(place, (b"there",), {} if there is None else {"attempt": there})
    save(staged, (b"mine",), {"attempt": mine})
    assert publish(staged, place) == replaced
    assert weights(place) == (b"mine" if replaced else b"there")


def test_an_adopted_model_is_its_adopters(staged: Path, place: Path) -> None:
    """An attempt between the two, which wakes up later, does not replace it; all else in the manifest stays."""
    save(place, (b"first",), {"attempt": 1, **FACTS})
    before = manifest_of(place)
    assert claim_artifact(place, staged.with_name("3"), before, 3)
    now = manifest_of(place)
    assert now == {**before, "attempt": 3}
    save(staged, (b"second",), {"attempt": 2})
    assert not publish(staged, place)
    assert weights(place) == b"first"
    assert claim_artifact(place, staged, now, 2)
    assert read_manifest(place) == now


def test_what_was_replaced_meanwhile_is_not_adopted(staged: Path, place: Path) -> None:
    """The adopter is told, and looks again."""
    save(place, (b"first",), {"attempt": 1})
    before = manifest_of(place)
    save(place, (b"second",), {"attempt": 2})
    assert not claim_artifact(place, staged, before, 3)
    assert attempt_of(place) == 2


def test_a_large_model_is_verified_with_signs_of_life(tmp_path: Path) -> None:
    """One for each MiB."""
    save(tmp_path, (bytes(3 << 20),), FACTS)
    beats: list[int] = []
    assert read_manifest(tmp_path, lambda: beats.append(1)) is not None
    assert len(beats) == 3
