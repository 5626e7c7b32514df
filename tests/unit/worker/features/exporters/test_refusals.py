"""Stores and servers that refuse: what is permanent ends an export at once, with a remedy; what may pass is retried."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
import trustme
from pydantic import JsonValue

from preflight.errors import ArtifactError, PreflightError, TimedOut
from preflight.object_store import open_url
from training.artifacts.model_dir import save
from worker.config.settings import load
from worker.features.exporters import retry
from worker.features.exporters.base import exports, probe
from worker.features.exporters.mlflow_child import connect, probe_server
from worker.features.exporters.mlflow_run import log_run
from worker.features.exporters.mlflow_server import local_path, open_experiment
from worker.features.exporters.refusals import NO_CHECKSUMS, explain_permanent
from worker.features.exporters.retry import retry_export
from worker.features.exporters.training_history import read_finished_job
from worker.features.exporters.upload import probe_store

Answer = Callable[[BaseHTTPRequestHandler, bytes], tuple[int, bytes]]
RUN = "0" * 32


class Server(ThreadingHTTPServer):
    """Answers every request by a function, and keeps their paths and bodies."""

    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.asked: list[str] = []
        self.port = self.server_address[1]


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.asked.append(f"{self.command} {self.path}")
        status, content = self.server.answer(self, body)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = handle_any  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def serving(answer: Answer, certificate: trustme.LeafCert | None = None) -> Iterator[Server]:
    server = Server(answer)
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate.configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Tries:
    """Ends an export at its third failed try, as a deadline does."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        self.said.append(f"{kind} {payload['message']}")
        if len(self.said) == 3:
            raise TimedOut(f"durable={durable}")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "BASE_PAUSE_SECONDS", 0.001)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "auto",
        "AWS_MAX_ATTEMPTS": "1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "NO_PROXY": "127.0.0.1,localhost",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)


def send_to_s3(url: str, monkeypatch: pytest.MonkeyPatch, report: Tries) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    store, root = open_url("s3://bucket/models", "PREFLIGHT_ARTIFACT_URL")
    probe_store(store, root, report, make_directories=False)


def send_to_mlflow(url: str, monkeypatch: pytest.MonkeyPatch, report: Tries) -> None:  # noqa: ARG001 - as above
    client = connect(url)
    retry_export(partial(open_experiment, client, "digits"), report)


SENDS = {"s3": send_to_s3, "mlflow": send_to_mlflow}


@pytest.mark.parametrize(("send", "status", "words"), [
    ("s3", 401, "the server refuses the credentials; correct them"),
    ("mlflow", 403, "the server refuses access"),
    ("mlflow", 404, "has nothing at this address"),
    ("s3", 413, "raise the limit of the server or of the proxy before it (nginx: client_max_body_size)"),
    ("mlflow", 501, "the server refuses the request (HTTP 501)"),
])  # fmt: skip
def test_a_permanent_refusal_is_not_retried(
    monkeypatch: pytest.MonkeyPatch, send: str, status: int, words: str
) -> None:
    """Whatever the server says in its body: a page of a proxy here."""
    report = Tries()
    with serving(lambda *_: (status, b"<html>no</html>")) as server, pytest.raises(ArtifactError) as caught:
        SENDS[send](f"http://127.0.0.1:{server.port}", monkeypatch, report)
    said = caught.value.message
    assert words in said or (send == "s3" and isinstance(caught.value.__cause__, FileNotFoundError | PermissionError))
    assert report.said == []


@pytest.mark.parametrize(("send", "status"), [("s3", 503), ("mlflow", 429), ("mlflow", 500)])
def test_what_may_pass_is_retried(monkeypatch: pytest.MonkeyPatch, send: str, status: int) -> None:
    report = Tries()
    with serving(lambda *_: (status, b"<html>later</html>")) as server, pytest.raises(TimedOut):
        SENDS[send](f"http://127.0.0.1:{server.port}", monkeypatch, report)
    assert len(report.said) == 3


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize(("scheme", "certified", "words"), [
    ("https", True, "its certificate is not trusted; name the authority's file in REQUESTS_CA_BUNDLE"),
    ("https", False, "it answers without TLS; write http:// instead of https://"),
])  # fmt: skip
def test_tls_that_cannot_work_is_not_retried(
    monkeypatch: pytest.MonkeyPatch, send: str, scheme: str, certified: bool, words: str
) -> None:
    report, certificate = Tries(), trustme.CA().issue_cert("127.0.0.1") if certified else None
    with serving(lambda *_: (200, b"{}"), certificate) as server, pytest.raises(ArtifactError) as caught:
        SENDS[send](f"{scheme}://127.0.0.1:{server.port}", monkeypatch, report)
    assert words in caught.value.message
    assert report.said == []


def raised(error: BaseException, *causes: BaseException) -> BaseException:
    """Return an exception with a chain of causes."""
    first = error
    for cause in causes:
        error.__cause__ = cause
        error = cause
    return first


def test_an_unknown_host_is_permanent_and_a_name_server_that_is_away_is_not() -> None:
    """However deep a library has wrapped it; an endless chain ends."""
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    away = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert explain_permanent(raised(RuntimeError("x"), OSError("y"), unknown)) == (
        "no name server knows its host; correct the URL"
    )
    assert explain_permanent(raised(RuntimeError("x"), OSError("y"), away)) is None
    loop = RuntimeError("loop")
    loop.__cause__ = raised(ValueError("inner"), loop)
    assert explain_permanent(loop) is None


def without_checksums(request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:  # noqa: ARG001 - an `Answer`
    odd = [name for name in request.headers if name.lower().startswith(("x-amz-checksum", "x-amz-sdk-checksum"))]
    if odd:
        return 501, f"<Error><Code>NotImplemented</Code><Message>Header '{odd[0]}'</Message></Error>".encode()
    return (200, b"") if request.command == "PUT" else (204 if request.command == "DELETE" else 404, b"")


def test_a_store_that_knows_no_checksums_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many are that have S3's API, since botocore sends checksums with every request."""
    report = Tries()
    with serving(without_checksums) as server, pytest.raises(ArtifactError) as caught:
        send_to_s3(f"http://127.0.0.1:{server.port}", monkeypatch, report)
    for name, value in NO_CHECKSUMS.items():
        assert f"{name}={value}" in caught.value.message
    assert report.said == []


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "FSSPEC_S3_ENDPOINT_URL"])
def test_a_store_of_another_maker_gets_none_by_itself(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Unless the user wants them; Amazon's gets them always."""
    settings = load(artifact_url="s3://bucket/models")
    assert not set(NO_CHECKSUMS) & set(exports(settings)[0].environment)
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    assert set(NO_CHECKSUMS.items()) <= set(exports(settings)[0].environment.items())
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
    assert exports(settings)[0].environment["AWS_REQUEST_CHECKSUM_CALCULATION"] == "when_supported"


class FakeMlflow:
    """As much of an MLflow server as an export asks for, with an artifact root of its own or one it shares."""

    def __init__(self, root: Path, *, shared: bool = False, stage: str = "active") -> None:
        self.root = root
        self.shared = shared
        self.stage = stage
        self.tags: dict[str, str] = {}

    def __call__(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        path = request.path.partition("?")[0].rpartition("/mlflow/")[2]
        uri = f"{self.root}/1/{RUN}/artifacts"
        info = {"run_id": RUN, "run_uuid": RUN, "experiment_id": "1", "status": "FINISHED", "artifact_uri": uri,
                "lifecycle_stage": "active", "start_time": 1}  # fmt: skip
        tags = [{"key": key, "value": value} for key, value in self.tags.items()]
        run = {"info": info, "data": {"tags": tags}}
        match path:
            case "experiments/get-by-name":
                answer: object = {"experiment": {"experiment_id": "1", "name": "digits", "lifecycle_stage": self.stage,
                                                 "artifact_location": f"{self.root}/1"}}  # fmt: skip
            case "runs/search":
                answer = {"runs": [run] if self.tags else []}
            case "runs/create":
                self.tags = {tag["key"]: tag["value"] for tag in json.loads(body).get("tags", [])}
                answer = {"run": run}
            case "runs/get":
                answer = {"run": run}
            case "runs/set-tag":
                tag = json.loads(body)
                self.tags[tag["key"]] = tag["value"]
                answer = {}
            case "runs/update":
                answer = {"run_info": info}
            case "artifacts/list":
                there = sorted(Path(uri).iterdir()) if self.shared else []
                answer = {"files": [{"path": file.name, "is_dir": False, "file_size": "0"} for file in there]}
            case _:
                answer = {}
        return 200, json.dumps(answer).encode()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    metrics: dict[str, JsonValue] = {"test_accuracy": 0.9, "test_loss": 0.5}
    facts: dict[str, JsonValue] = {
        "job_id": "job", "created_at": "2026-01-01T00:00:00+00:00", "spec": {}, "plan": {}, "metrics": metrics,
        "history": [],
    }  # fmt: skip
    save(tmp_path / "model", (b"weights",), facts)
    return tmp_path / "model"


@pytest.mark.parametrize("root", ["writable", "not writable"])
def test_files_do_not_land_on_the_workers_disk(model: Path, tmp_path: Path, root: str) -> None:
    """A server with a path of its own disk gets the curves, and nothing stays here; a later export tries again."""
    where = tmp_path / "far" / "mlruns"
    if root == "not writable":
        (tmp_path / "far").write_text("a file is in the way")
    fake = FakeMlflow(where)
    job = read_finished_job("job", model, None)
    with serving(fake) as server:
        for _ in range(2):
            with pytest.raises(ArtifactError) as caught:
                log_run(connect(f"http://127.0.0.1:{server.port}"), "digits", job)
    assert f"the MLflow server keeps files in {where}/1, which is a path on its own disk" in caught.value.message
    assert "start it with --serve-artifacts" in caught.value.message
    assert [path.name for path in tmp_path.iterdir() if path.name != "far"] == ["model"]
    assert root != "writable" or not (tmp_path / "far").exists()
    assert server.asked.count("POST /api/2.0/mlflow/runs/create") == 2
    assert "preflight.model_sha256" not in fake.tags


def test_a_disk_that_both_share_gets_the_files(model: Path, tmp_path: Path) -> None:
    """The server sees the file that is written here; then the run counts as complete."""
    fake = FakeMlflow(tmp_path / "mlruns", shared=True)
    with serving(fake) as server:
        client = connect(f"http://127.0.0.1:{server.port}")
        for _ in range(2):
            log_run(client, "digits", read_finished_job("job", model, None))
    assert {path.name for path in (tmp_path / "mlruns/1" / RUN / "artifacts").iterdir()} == {
        "manifest.json", "model.safetensors",
    }  # fmt: skip
    assert server.asked.count("POST /api/2.0/mlflow/runs/create") == 1


def test_a_deleted_experiment_is_named_with_both_remedies(tmp_path: Path) -> None:
    with serving(FakeMlflow(tmp_path, stage="deleted")) as server, pytest.raises(ArtifactError) as caught:
        open_experiment(connect(f"http://127.0.0.1:{server.port}"), "digits")
    assert caught.value.message == (
        "the MLflow experiment 'digits' is deleted; restore it (mlflow experiments restore --experiment-id 1), or set "
        "PREFLIGHT_MLFLOW_EXPERIMENT to another name"
    )


def test_a_host_that_mlflow_does_not_allow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Tries()
    refusal = b"Invalid Host header - possible DNS rebinding attack detected"
    with serving(lambda *_: (403, refusal)) as server, pytest.raises(ArtifactError, match="--allowed-hosts"):
        send_to_mlflow(f"http://127.0.0.1:{server.port}", monkeypatch, report)
    assert report.said == []


def test_the_doctor_asks_each_destination_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before a job does: the same sentences, in a child with the export's environment; a directory is tried, too."""
    found = FakeMlflow(tmp_path / "mlruns")
    with serving(found) as server:
        (mlflow,) = exports(load(mlflow_uri=f"http://127.0.0.1:{server.port}"))
        with pytest.raises(PreflightError, match="which is a path on its own disk"):
            probe(mlflow)
        assert "POST /api/2.0/mlflow/runs/delete" in server.asked
    (directory,) = exports(load(artifact_url=f"file://{tmp_path}/models"))
    probe(directory)
    assert list((tmp_path / "models").iterdir()) == []
    (tmp_path / "file").touch()
    (closed,) = exports(load(artifact_url=f"file://{tmp_path}/file/models"))
    monkeypatch.setattr("worker.features.exporters.base.PROBE_TIMEOUT", 5.0)
    with pytest.raises(PreflightError, match="Not a directory"):
        probe(closed)


def test_a_run_in_a_local_store_needs_no_question(tmp_path: Path) -> None:
    """Without a server, the path is this machine's."""
    probe_server(connect(f"file://{tmp_path}/runs"), "digits")
    assert local_path("mlflow-artifacts:/1/x") is None
    assert local_path("s3://bucket/1") is None
    assert local_path("file:///ml%20runs/1") == Path("/ml runs/1")
