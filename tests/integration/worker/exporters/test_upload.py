"""Models go to an S3 API (moto's server), by way of a proxy that fails, damages and holds what it is told to."""

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from objects import BUCKET, Objects, objects
from pydantic import JsonValue

from training.artifacts.publish import MANIFEST, MODEL, save
from training.errors import ArtifactError, InvalidConfig, MissingPackage, PreflightError
from training.process.journal import JournalReader, JournalWriter
from worker.config.settings import load
from worker.exporters import base as exporting
from worker.exporters.base import ExportRequest, exports
from worker.exporters.upload_child import PART, opened, run

TRACE = "trace.json"


@pytest.fixture(scope="module")
def s3() -> Iterator[Objects]:
    with objects() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "1",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        yield server


@pytest.fixture(autouse=True)
def plain(s3: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.reset()
    monkeypatch.setattr(exporting, "FIRST_PAUSE", 0.01)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An artifact."""
    return artifact(tmp_path / "model", b"weights")


def artifact(directory: Path, weights: bytes) -> Path:
    save(directory, weights, {"job_id": "job"})
    (directory / TRACE).write_text("{}")
    return directory


def send(url: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job_id: str) -> tuple[str, list[str]]:
    """Upload in this process; return the URL in the result, and why tries failed."""
    monkeypatch.setenv("PREFLIGHT_ARTIFACT_URL", url)
    with JournalWriter(tmp_path / "journal", "run") as journal:
        run(ExportRequest(job_id=job_id, artifact=model), journal, lambda: False)
    *retries, done = JournalReader(tmp_path / "journal", "run").read()
    return str(done.payload["artifact_url"]), [str(record.payload["message"]) for record in retries]


def see_that_whole(s3: Objects, model: Path, prefix: str) -> None:
    manifest = json.loads(s3.content(f"{prefix}/{MANIFEST}") or b"null")
    assert set(manifest["sha256"]) == {MODEL, TRACE}
    for name, digest in manifest["sha256"].items():
        content = s3.content(f"{prefix}/{name}") or b""
        assert content == (model / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
    assert manifest["job_id"] == "job"


def test_a_model_is_uploaded_manifest_last(s3: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older manifest goes first, the new one comes last; large weights go in parts."""
    large = artifact(tmp_path / "large", b"weights!" * (PART // 8) + b"and more")
    url, retries = send(f"s3://{BUCKET}/prefix/", large, tmp_path, monkeypatch, "job")
    assert (url, retries) == (f"s3://{BUCKET}/prefix/job", [])
    see_that_whole(s3, large, "prefix/job")
    writes = [line.split("?")[0] for line in s3.passed_on if not line.startswith(("GET", "HEAD"))]
    assert writes[0] == f"DELETE /{BUCKET}/prefix/job/{MANIFEST}"
    assert writes[-1] == f"PUT /{BUCKET}/prefix/job/{MANIFEST}"
    assert writes.count(f"PUT /{BUCKET}/prefix/job/{MODEL}") == 2


def test_a_service_that_fails_is_tried_again(
    s3: Objects, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the tries of S3's own client are used up."""
    s3.failing = 6
    _, retries = send(f"s3://{BUCKET}", model, tmp_path, monkeypatch, "fails")
    assert retries
    see_that_whole(s3, model, "fails")


def test_damage_on_the_way_is_found_and_mended(
    s3: Objects, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte that is another one in the store shows when it is read back: S3's own checksums end before it."""
    s3.damaging = 1
    _, retries = send(f"s3://{BUCKET}", model, tmp_path, monkeypatch, "damaged")
    assert ["was read back with sha256" in retry for retry in retries] == [True]
    see_that_whole(s3, model, "damaged")


def test_nobody_sees_half_a_model(s3: Objects, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a second upload is under way there is no manifest, old or new."""
    send(f"s3://{BUCKET}", model, tmp_path, monkeypatch, "twice")
    s3.held = TRACE
    again = threading.Thread(target=send, args=(f"s3://{BUCKET}", model, tmp_path, monkeypatch, "twice"))
    again.start()
    assert s3.holding.wait(30)
    assert s3.content(f"twice/{MODEL}") is not None
    assert s3.content(f"twice/{MANIFEST}") is None
    s3.released.set()
    again.join()
    see_that_whole(s3, model, "twice")


def test_a_wrong_bucket_is_not_tried_again_and_not_made(
    s3: Objects, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named at once."""
    with pytest.raises(ArtifactError) as caught:
        send("s3://misspelt/prefix", model, tmp_path, monkeypatch, "job")
    assert "FileNotFoundError" in caught.value.message
    status, _, _ = s3.ask("GET", "/misspelt")
    assert status == 404


def test_a_directory_is_a_place_too(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """file:// makes its directories; the one in which models lie already is refused."""
    url, _ = send(f"file://{tmp_path}/far/away", model, tmp_path, monkeypatch, "job")
    assert url == f"file://{tmp_path}/far/away/job"
    assert json.loads((tmp_path / "far/away/job" / MANIFEST).read_text())["job_id"] == "job"
    assert (tmp_path / "far/away/job" / MODEL).read_bytes() == (model / MODEL).read_bytes()
    with pytest.raises(InvalidConfig, match="where the models lie already"):
        opened(f"file://{tmp_path}/far/../far", "file", tmp_path / "far")


def test_what_fsspec_cannot_do_is_said(tmp_path: Path) -> None:
    """An unknown scheme, and one whose package is missing."""
    with pytest.raises(InvalidConfig, match="PREFLIGHT_ARTIFACT_URL is a foo URL that fsspec cannot use"):
        opened("foo://bucket", "foo", tmp_path)
    with pytest.raises(MissingPackage, match="pip install 'preflight-worker"):
        opened("lakefs://bucket", "lakefs", tmp_path)


def test_no_secret_gets_on_disk_or_into_a_message(model: Path, tmp_path: Path) -> None:
    """A password in the URL reaches the child by its environment; what the child says of it is scrubbed."""
    settings = load(artifact_url="ftp://user:hunter2@127.0.0.1:1/x", artifact_dir=tmp_path, export_seconds=0.01)
    (export,) = exports(settings)
    with pytest.raises((ArtifactError, InvalidConfig)) as caught:
        export.send(ExportRequest(job_id="job", artifact=model), tmp_path, lambda: None)
    assert "ftp" in caught.value.message
    assert "hunter2" not in caught.value.message + export.where + settings.scrubbed(repr(settings))
    assert not [path for path in tmp_path.iterdir() if path.is_file() and b"hunter2" in path.read_bytes()]


def at(attempt: int, created: str) -> dict[str, JsonValue]:
    """Return what the manifest of an attempt says."""
    return {"job_id": "job", "attempt": attempt, "created_at": f"2026-11-23T{created}:00+00:00"}


def test_a_later_attempts_model_stays(s3: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that was frozen before its upload wakes up after its successor's: nothing there is touched."""
    first, second = tmp_path / "first", tmp_path / "second"
    save(first, b"first", at(1, "10:00"))
    save(second, b"second", at(2, "11:00"))
    send(f"s3://{BUCKET}/stays", second, tmp_path, monkeypatch, "job")
    s3.passed_on.clear()
    with pytest.raises(ArtifactError, match="holds the model of attempt 2, which is later than 1 and is kept"):
        send(f"s3://{BUCKET}/stays", first, tmp_path, monkeypatch, "job")
    assert [line for line in s3.passed_on if not line.startswith(("GET", "HEAD"))] == []
    assert s3.content(f"stays/job/{MODEL}") == b"second"


@pytest.mark.parametrize("before", [at(1, "11:00"), at(2, "10:00"), at(3, "09:00"), {"job_id": "job"}])
def test_any_other_model_is_replaced(
    s3: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: dict[str, JsonValue]
) -> None:
    """That of an earlier attempt, or of a job that was begun anew after all was forgotten about it."""
    url = f"s3://{BUCKET}/{tmp_path.name}"
    save(tmp_path / "before", b"before", before)
    save(tmp_path / "now", b"now", at(2, "10:00"))
    send(url, tmp_path / "before", tmp_path, monkeypatch, "job")
    send(url, tmp_path / "now", tmp_path, monkeypatch, "job")
    assert s3.content(f"{tmp_path.name}/job/{MODEL}") == b"now"


def test_an_upload_that_is_overtaken_ends(s3: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen amid its files (here: held), it sees its successor's manifest before the next one, and writes no more."""
    first, second = artifact(tmp_path / "first", b"first"), tmp_path / "second"
    save(first, b"first", at(1, "10:00"))
    save(second, b"second", at(2, "11:00"))
    ended: list[PreflightError] = []

    def upload() -> None:
        try:
            send(f"s3://{BUCKET}/ends", first, tmp_path, monkeypatch, "job")
        except PreflightError as error:
            ended.append(error)

    s3.held = TRACE
    frozen = threading.Thread(target=upload)
    frozen.start()
    assert s3.holding.wait(30)
    other = tmp_path / "other"
    other.mkdir()
    send(f"s3://{BUCKET}/ends", second, other, monkeypatch, "job")
    s3.released.set()
    frozen.join()
    (error,) = ended
    assert "which is later than 1 and is kept" in error.message
    assert s3.content(f"ends/job/{MODEL}") == b"second"
    assert json.loads(s3.content(f"ends/job/{MANIFEST}") or b"null")["attempt"] == 2
