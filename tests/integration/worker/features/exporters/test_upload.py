"""Uploads to an S3 API (moto's server), through a proxy that fails, damages and holds requests."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from pydantic import JsonValue
from support.files.objects import BUCKET, CREDENTIALS, Objects, objects

from preflight.errors import ArtifactError, InvalidConfig, MissingPackage
from preflight.files.journal import JournalReader, JournalWriter
from preflight.object_store import open_url
from training.artifacts.model_dir import MANIFEST, MODEL, save
from worker.config.settings import load
from worker.features.exporters import retry
from worker.features.exporters.base import ExportRequest, exports
from worker.features.exporters.upload import PART_SIZE
from worker.features.exporters.upload_child import run

TRACE = "trace.json"


@pytest.fixture(scope="module")
def s3() -> Iterator[Objects]:
    with objects() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": server.url, "AWS_MAX_ATTEMPTS": "1"}.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(autouse=True)
def plain(s3: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.reset()
    fsspec.get_filesystem_class("s3").clear_instance_cache()  # they keep the address of an earlier server
    monkeypatch.setattr(retry, "BASE_PAUSE_SECONDS", 0.01)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return artifact(tmp_path / "model", b"weights")


def artifact(directory: Path, weights: bytes, manifest: dict[str, JsonValue] | None = None) -> Path:
    save(directory, (weights,), manifest or {"job_id": "job"})
    (directory / TRACE).write_text("{}")
    return directory


Send = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def send(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Send:
    """Upload in this process; return the URL in the result, and the errors of failed tries."""

    def send(model: Path, prefix: str = "", *, job: str = "job", url: str = f"s3://{BUCKET}") -> tuple[str, list[str]]:
        monkeypatch.setenv("PREFLIGHT_ARTIFACT_URL", url + prefix)
        journal_path = tmp_path_factory.mktemp("upload") / "journal"
        with JournalWriter(journal_path, "run") as journal:
            run(ExportRequest(job_id=job, artifact=model), journal, lambda: False)
        *retries, done = JournalReader(journal_path, "run").read()
        return str(done.payload["artifact_url"]), [str(record.payload["message"]) for record in retries]

    return send


def assert_complete(s3: Objects, model: Path, prefix: str) -> None:
    manifest = json.loads(s3.content(f"{prefix}/{MANIFEST}") or b"null")
    assert set(manifest["sha256"]) == {MODEL, TRACE}
    for name, digest in manifest["sha256"].items():
        content = s3.content(f"{prefix}/{name}") or b""
        assert content == (model / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
    assert manifest["job_id"] == "job"


def test_a_model_is_uploaded_manifest_last(s3: Objects, tmp_path: Path, send: Send) -> None:
    """The old manifest is deleted first, the new one written last; large weights are uploaded in parts."""
    large = artifact(tmp_path / "large", b"weights!" * (PART_SIZE // 8) + b"and more")
    assert send(large, "/prefix/") == (f"s3://{BUCKET}/prefix/job", [])
    assert_complete(s3, large, "prefix/job")
    writes = [line.split("?")[0] for line in s3.passed_on if not line.startswith(("GET", "HEAD"))]
    assert writes[0] == f"DELETE /{BUCKET}/prefix/job/{MANIFEST}"
    assert writes[-1] == f"PUT /{BUCKET}/prefix/job/{MANIFEST}"
    assert writes.count(f"PUT /{BUCKET}/prefix/job/{MODEL}") == 2


def test_a_failing_service_is_retried(s3: Objects, model: Path, send: Send) -> None:
    """After the retries of S3's client are exhausted."""
    s3.failing = 6
    _, retries = send(model, job="fails")
    assert retries
    assert_complete(s3, model, "fails")


def test_damage_in_transit_is_detected_and_repaired(s3: Objects, model: Path, send: Send) -> None:
    """A file is read back, because S3's checksums end before the store."""
    s3.damaging = 1
    _, retries = send(model, job="damaged")
    assert ["was read back with sha256" in retry for retry in retries] == [True]
    assert_complete(s3, model, "damaged")


def test_no_reader_sees_an_incomplete_model(s3: Objects, model: Path, send: Send) -> None:
    """During a second upload there is no manifest, old or new."""
    send(model, job="twice")
    s3.held = TRACE
    again = threading.Thread(target=send, args=(model,), kwargs={"job": "twice"})
    again.start()
    assert s3.holding.wait(30)
    assert s3.content(f"twice/{MODEL}") is not None
    assert s3.content(f"twice/{MANIFEST}") is None
    s3.released.set()
    again.join()
    assert_complete(s3, model, "twice")


def test_a_wrong_bucket_is_neither_retried_nor_created(s3: Objects, model: Path, send: Send) -> None:
    """The error is raised at once."""
    with pytest.raises(ArtifactError) as caught:
        send(model, url="s3://misspelt/prefix")
    assert "FileNotFoundError" in caught.value.message
    assert s3.ask("GET", "/misspelt")[0] == 404


def test_a_directory_is_a_destination(model: Path, tmp_path: Path, send: Send) -> None:
    """file:// makes its directories; the artifact directory itself is refused."""
    url, _ = send(model, url=f"file://{tmp_path}/far/away")
    assert url == f"file://{tmp_path}/far/away/job"
    assert json.loads((tmp_path / "far/away/job" / MANIFEST).read_text())["job_id"] == "job"
    assert (tmp_path / "far/away/job" / MODEL).read_bytes() == (model / MODEL).read_bytes()
    with pytest.raises(InvalidConfig, match="the artifact directory"):
        open_url(f"file://{tmp_path}/far/../far", "PREFLIGHT_ARTIFACT_URL", other_than=tmp_path / "far")


def test_unsupported_urls_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="PREFLIGHT_ARTIFACT_URL is a foo URL that fsspec cannot use"):
        open_url("foo://bucket", "PREFLIGHT_ARTIFACT_URL")
    with pytest.raises(MissingPackage, match=r"pip install \./client "):
        open_url("lakefs://bucket", "PREFLIGHT_ARTIFACT_URL")


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
    return {"job_id": "job", "attempt": attempt, "created_at": f"2026-11-23T{created}:00+00:00"}


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """The model of an attempt, which its worker can upload only after that of `second`."""
    return artifact(tmp_path / "first", b"first", at(1, "10:00"))


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """The model of the attempt that supersedes `first`, without a trace."""
    save(tmp_path / "second", (b"second",), at(2, "11:00"))
    return tmp_path / "second"


def test_the_model_of_a_later_attempt_is_kept(s3: Objects, first: Path, second: Path, send: Send) -> None:
    """An attempt that was frozen before its upload resumes after its successor's, and writes nothing."""
    send(second, "/stays")
    s3.passed_on.clear()
    with pytest.raises(ArtifactError, match="holds the model of attempt 2, which is later than 1 and is kept"):
        send(first, "/stays")
    assert [line for line in s3.passed_on if not line.startswith(("GET", "HEAD"))] == []
    assert s3.content(f"stays/job/{MODEL}") == b"second"


@pytest.mark.parametrize("before", [at(1, "11:00"), at(2, "10:00"), at(3, "09:00"), {"job_id": "job"}])
def test_any_other_model_is_replaced(s3: Objects, tmp_path: Path, send: Send, before: dict[str, JsonValue]) -> None:
    """That of an earlier attempt, or of a job run again after its records expired."""
    for weights, manifest in ((b"before", before), (b"now", at(2, "10:00"))):
        send(artifact(tmp_path / weights.decode(), weights, manifest), f"/{tmp_path.name}")
    assert s3.content(f"{tmp_path.name}/job/{MODEL}") == b"now"


def test_a_superseded_upload_ends(s3: Objects, first: Path, second: Path, send: Send) -> None:
    """Frozen between its files, it sees its successor's manifest before the next file, and writes no more."""
    s3.held = TRACE
    with ThreadPoolExecutor(1) as pool:
        frozen = pool.submit(send, first, "/ends")
        assert s3.holding.wait(30)
        send(second, "/ends")
        s3.released.set()
        with pytest.raises(ArtifactError, match="which is later than 1 and is kept"):
            frozen.result()
    assert s3.content(f"ends/job/{MODEL}") == b"second"
    assert json.loads(s3.content(f"ends/job/{MANIFEST}") or b"null")["attempt"] == 2
