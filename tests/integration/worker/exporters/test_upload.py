"""Uploads to an S3 API (moto's server), through a proxy that fails, damages and holds requests."""

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from objects import BUCKET, Objects, objects
from pydantic import JsonValue

from training.artifacts.model_dir import MANIFEST, MODEL, save
from training.errors import ArtifactError, InvalidConfig, MissingPackage, PreflightError
from training.process.journal import JournalReader, JournalWriter
from worker.config.settings import load
from worker.exporters import retry
from worker.exporters.base import ExportRequest, exports
from worker.exporters.upload import PART_SIZE
from worker.exporters.upload_child import open_store, run

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
    fsspec.get_filesystem_class("s3").clear_instance_cache()  # they keep the address of an earlier server
    monkeypatch.setattr(retry, "BASE_PAUSE_SECONDS", 0.01)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An artifact."""
    return artifact(tmp_path / "model", b"weights")


def artifact(directory: Path, weights: bytes) -> Path:
    save(directory, weights, {"job_id": "job"})
    (directory / TRACE).write_text("{}")
    return directory


def send(url: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job_id: str) -> tuple[str, list[str]]:
    """Upload in this process; return the URL in the result, and the errors of failed tries."""
    monkeypatch.setenv("PREFLIGHT_ARTIFACT_URL", url)
    with JournalWriter(tmp_path / "journal", "run") as journal:
        run(ExportRequest(job_id=job_id, artifact=model), journal, lambda: False)
    *retries, done = JournalReader(tmp_path / "journal", "run").read()
    return str(done.payload["artifact_url"]), [str(record.payload["message"]) for record in retries]


def assert_complete(s3: Objects, model: Path, prefix: str) -> None:
    manifest = json.loads(s3.content(f"{prefix}/{MANIFEST}") or b"null")
    assert set(manifest["sha256"]) == {MODEL, TRACE}
    for name, digest in manifest["sha256"].items():
        content = s3.content(f"{prefix}/{name}") or b""
        assert content == (model / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
    assert manifest["job_id"] == "job"


def test_a_model_is_uploaded_manifest_last(s3: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old manifest is deleted first, the new one written last; large weights are uploaded in parts."""
    large = artifact(tmp_path / "large", b"weights!" * (PART_SIZE // 8) + b"and more")
    url, retries = send(f"s3://{BUCKET}/prefix/", large, tmp_path, monkeypatch, "job")
    assert (url, retries) == (f"s3://{BUCKET}/prefix/job", [])
    assert_complete(s3, large, "prefix/job")
    writes = [line.split("?")[0] for line in s3.passed_on if not line.startswith(("GET", "HEAD"))]
    assert writes[0] == f"DELETE /{BUCKET}/prefix/job/{MANIFEST}"
    assert writes[-1] == f"PUT /{BUCKET}/prefix/job/{MANIFEST}"
    assert writes.count(f"PUT /{BUCKET}/prefix/job/{MODEL}") == 2


def test_a_failing_service_is_retried(
    s3: Objects, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the retries of S3's client are exhausted."""
    s3.failing = 6
    _, retries = send(f"s3://{BUCKET}", model, tmp_path, monkeypatch, "fails")
    assert retries
    assert_complete(s3, model, "fails")


def test_damage_in_transit_is_detected_and_repaired(
    s3: Objects, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is read back, because S3's checksums end before the store."""
    s3.damaging = 1
    _, retries = send(f"s3://{BUCKET}", model, tmp_path, monkeypatch, "damaged")
    assert ["was read back with sha256" in retry for retry in retries] == [True]
    assert_complete(s3, model, "damaged")


def test_no_reader_sees_an_incomplete_model(
    s3: Objects, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a second upload there is no manifest, old or new."""
    send(f"s3://{BUCKET}", model, tmp_path, monkeypatch, "twice")
    s3.held = TRACE
    again = threading.Thread(target=send, args=(f"s3://{BUCKET}", model, tmp_path, monkeypatch, "twice"))
    again.start()
    assert s3.holding.wait(30)
    assert s3.content(f"twice/{MODEL}") is not None
    assert s3.content(f"twice/{MANIFEST}") is None
    s3.released.set()
    again.join()
    assert_complete(s3, model, "twice")


def test_a_wrong_bucket_is_neither_retried_nor_created(
    s3: Objects, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised at once."""
    with pytest.raises(ArtifactError) as caught:
        send("s3://misspelt/prefix", model, tmp_path, monkeypatch, "job")
    assert "FileNotFoundError" in caught.value.message
    status, _, _ = s3.ask("GET", "/misspelt")
    assert status == 404


def test_a_directory_is_a_destination(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """file:// makes its directories; the artifact directory itself is refused."""
    url, _ = send(f"file://{tmp_path}/far/away", model, tmp_path, monkeypatch, "job")
    assert url == f"file://{tmp_path}/far/away/job"
    assert json.loads((tmp_path / "far/away/job" / MANIFEST).read_text())["job_id"] == "job"
    assert (tmp_path / "far/away/job" / MODEL).read_bytes() == (model / MODEL).read_bytes()
    with pytest.raises(InvalidConfig, match="the artifact directory"):
        open_store(f"file://{tmp_path}/far/../far", "file", tmp_path / "far")


def test_unsupported_urls_are_refused(tmp_path: Path) -> None:
    """An unknown scheme, and one whose package is missing."""
    with pytest.raises(InvalidConfig, match="PREFLIGHT_ARTIFACT_URL is a foo URL that fsspec cannot use"):
        open_store("foo://bucket", "foo", tmp_path)
    with pytest.raises(MissingPackage, match="pip install 'preflight-worker"):
        open_store("lakefs://bucket", "lakefs", tmp_path)


def test_no_secret_is_written_to_disk_or_a_message(model: Path, tmp_path: Path) -> None:
    """A password in the URL is in the child's environment only; its messages are redacted."""
    settings = load(artifact_url="ftp://user:hunter2@127.0.0.1:1/x", artifact_dir=tmp_path, export_seconds=0.01)
    (export,) = exports(settings)
    with pytest.raises((ArtifactError, InvalidConfig)) as caught:
        export.send(ExportRequest(job_id="job", artifact=model), tmp_path, lambda: None)
    assert "ftp" in caught.value.message
    assert "hunter2" not in caught.value.message + export.url + settings.redact(repr(settings))
    assert not [path for path in tmp_path.iterdir() if path.is_file() and b"hunter2" in path.read_bytes()]


def at(attempt: int, created: str) -> dict[str, JsonValue]:
    """Return the manifest of an attempt."""
    return {"job_id": "job", "attempt": attempt, "created_at": f"2026-11-23T{created}:00+00:00"}


def test_the_model_of_a_later_attempt_is_kept(s3: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that was frozen before its upload resumes after its successor's, and writes nothing."""
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
    """That of an earlier attempt, or of a job run again after its records expired."""
    url = f"s3://{BUCKET}/{tmp_path.name}"
    save(tmp_path / "before", b"before", before)
    save(tmp_path / "now", b"now", at(2, "10:00"))
    send(url, tmp_path / "before", tmp_path, monkeypatch, "job")
    send(url, tmp_path / "now", tmp_path, monkeypatch, "job")
    assert s3.content(f"{tmp_path.name}/job/{MODEL}") == b"now"


def test_a_superseded_upload_ends(s3: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen between its files, it sees its successor's manifest before the next file, and writes no more."""
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
