"""Files of finished models over HTTP: from disk and from an object store, whole, in parts, and refused."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pydantic import TypeAdapter
from redis import Redis
from support.files.damage import a_directory, a_pipe, linked
from support.files.objects import BUCKET, CREDENTIALS, objects
from support.web.service import TOKEN, Answer, Service, serving
from support.worker.services import wait_until

from preflight.events.state import publish
from preflight.wire import STATE_TTL, TrainingDone
from training.artifacts.model_dir import MANIFEST, MODEL, REPORT, save
from training.artifacts.predictions import PREDICTIONS
from worker.config.settings import Settings
from worker.web.auth import WAYS
from worker.web.files.file_response import RangeNotSatisfiable, byte_range
from worker.web.files.tickets import SECONDS, Tickets

pytestmark = pytest.mark.covers_children

WEIGHTS = bytes(range(256)) * 40
PATH = "/v1/jobs/done/files"
FILES = TypeAdapter(list[dict[str, str | int]])


@pytest.fixture(scope="module")
def shared_settings(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    directory = tmp_path_factory.mktemp("files")
    return Settings(redis_url=redis_url, artifact_dir=directory / "artifacts")


@pytest.fixture(scope="module")
def service(shared_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(shared_settings, tmp_path_factory.mktemp("logs")) as running:
        yield running


@pytest.fixture(autouse=True)
def redis(redis_url: str) -> Redis:
    """A Redis with one finished job."""
    connection = Redis.from_url(redis_url)
    connection.flushall()
    finish(connection, "done")
    return connection


def finish(redis: Redis, job_id: str, **fields: str) -> None:
    """Let a job be finished, whose worker's disk is another one."""
    done = TrainingDone(
        seq=1, job_id=job_id, attempt=1, ts=1, test_accuracy=0.9, test_loss=0.1, epochs=1, best_epoch=1,
        stopped_early=False, train_s=1, samples_per_s=1, measured_epoch_s=1, artifact="/far/away",
        model_sha256="0" * 64,
    )  # fmt: skip
    publish(redis, done.model_copy(update=fields), ttl=STATE_TTL)
    redis.hset(f"rq:job:{job_id}", "status", "finished")


@pytest.fixture
def model(shared_settings: Settings) -> Path:
    """A model on the disk of the service."""
    directory = shared_settings.artifact_dir / "done"
    shutil.rmtree(directory, ignore_errors=True)
    save(directory, (WEIGHTS,), {"job_id": "done"}, {PREDICTIONS: b"p" * 1000, REPORT: b"<p>all went well"})
    return directory


def listed(service: Service, path: str = PATH, **headers: str) -> dict[str, dict[str, str | int]]:
    """Return the files that the service lists, by name."""
    found = FILES.validate_python(service.ask("GET", path, headers=headers)["files"])
    return {str(file["name"]): file for file in found}


def test_files_are_listed_and_sent_as_they_are(service: Service, model: Path) -> None:
    """Only those that exist, with size and address; the report may be shown, and no script in it runs."""
    files = listed(service)
    assert {name: file["bytes"] for name, file in files.items()} == {
        name: (model / name).stat().st_size for name in (MODEL, PREDICTIONS, MANIFEST, REPORT)
    }
    for name, file in files.items():
        answer = service.ask("GET", str(file["href"]))
        assert (answer.status, answer.body) == (200, (model / name).read_bytes())
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-length"] == str(file["bytes"])
        assert answer.headers["content-disposition"].startswith("inline" if name == REPORT else "attachment")
    report = service.ask("GET", f"{PATH}/{REPORT}")
    assert report.headers["content-type"] == "text/html; charset=utf-8"
    assert report.headers["content-security-policy"].startswith("sandbox; default-src 'none';")
    assert "script" not in report.headers["content-security-policy"]


def test_parts_and_versions(service: Service, model: Path) -> None:
    """One range, also from the end; none of an older version; 304 for the version that the client has."""
    path = f"{PATH}/{MODEL}"

    def part(range_: str, **headers: str) -> tuple[int, str, bytes]:
        answer = service.ask("GET", path, headers={"range": range_, **headers})
        return answer.status, answer.headers.get("content-range", ""), answer.body

    size = len(WEIGHTS)
    tag = service.ask("GET", path).headers["etag"]
    assert part("bytes=0-9") == (206, f"bytes 0-9/{size}", WEIGHTS[:10])
    assert part("bytes=-7") == (206, f"bytes {size - 7}-{size - 1}/{size}", WEIGHTS[-7:])
    assert part(f"bytes=100-{10**17}") == (206, f"bytes 100-{size - 1}/{size}", WEIGHTS[100:])
    assert part("bytes=0-1,5-6") == part("lines=1-2") == part("bytes=5-3") == (200, "", WEIGHTS)
    assert part("bytes=1-2", **{"if-range": tag})[0] == 206
    assert part("bytes=1-2", **{"if-range": '"older"'})[0] == 200
    behind = service.ask("GET", path, headers={"range": f"bytes={size}-"})
    assert (behind.status, behind["reason"]) == (416, "range_not_satisfiable")
    same = service.ask("GET", path, headers={"if-none-match": tag})
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", tag)
    save(model, (WEIGHTS[::-1],), {"job_id": "done"})
    assert service.ask("GET", path, headers={"if-none-match": tag}).body == WEIGHTS[::-1]


@pytest.mark.parametrize(("header", "expected"), [
    (None, None), ("bytes=-", None), ("bytes=0-0", range(1)), ("bytes=-99", range(10)), ("bytes=9-", range(9, 10)),
], ids=str)  # fmt: skip
def test_ranges_of_ten_bytes(header: str | None, expected: range | None) -> None:
    assert byte_range(header, 10) == expected


@pytest.mark.parametrize(("header", "size"), [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=0-", 0)])
def test_ranges_behind_the_end(header: str, size: int) -> None:
    with pytest.raises(RangeNotSatisfiable):
        byte_range(header, size)


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("name", [
    "..", "../done/model.safetensors", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "model.safetensors%00", "MODEL.SAFETENSORS",
    "model.safetensors/", ".", "%2e%2e", "~staging", "%3Cscript%3Ealert(1)%3C/script%3E", "journal", "%ff",
])  # fmt: skip
def test_a_name_that_is_not_in_the_list(service: Service, name: str) -> None:
    answer = service.ask("GET", f"{PATH}/{name}")
    assert answer.status == 404
    assert answer["reason"] in ("unknown_file", "no_such_route", "unknown_job")
    assert "<script>" not in answer.headers["content-type"]
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("harm", [linked, a_pipe, a_directory])
def test_only_regular_files_are_read(service: Service, model: Path, harm: object) -> None:
    """A symbolic link, a pipe or a directory under a name of the list is none of its files, and holds nothing up."""
    assert callable(harm)
    harm(model / REPORT)
    answer = service.ask("GET", f"{PATH}/{REPORT}")
    assert (answer.status, answer["reason"]) == (404, "file_unavailable")
    assert REPORT not in listed(service)


def test_a_linked_directory_is_not_followed(service: Service, redis: Redis, model: Path) -> None:
    finish(redis, "linked")
    (model.parent / "linked").symlink_to(model)
    assert service.ask("GET", f"/v1/jobs/linked/files/{MODEL}").status == 404
    assert service.ask("GET", "/v1/jobs/linked/files")["files"] == []


def test_the_answer_says_where_files_lie(service: Service, redis: Redis) -> None:
    """A model that is gone or elsewhere, a job that has not finished, an unknown one."""
    finish(redis, "elsewhere", artifact="/models/elsewhere", artifact_url="s3://bucket/elsewhere")
    message = str(service.ask("GET", "/v1/jobs/elsewhere/files")["message"])
    assert "/models/elsewhere" in message
    assert "s3://bucket/elsewhere" in message
    refused = service.ask("GET", f"/v1/jobs/elsewhere/files/{MODEL}")
    assert (refused.status, refused["reason"]) == (404, "file_unavailable")
    assert "/models/elsewhere" in str(refused["message"])
    service.enqueue("waits")
    assert "job 'waits' is queued" in str(service.ask("GET", "/v1/jobs/waits/files")["message"])
    assert service.ask("GET", "/v1/jobs/nobody/files")["reason"] == "unknown_job"
    assert service.ask("GET", f"/v1/jobs/%3Cscript%3E/files/{MODEL}")["reason"] == "unknown_job"


@pytest.mark.usefixtures("model")
def test_a_ticket_replaces_the_token_for_one_file(shared_settings: Settings, tmp_path: Path) -> None:
    """For a minute, for GET and for this path; a listing needs the token."""
    with serving(shared_settings, tmp_path, PREFLIGHT_API_TOKEN=TOKEN) as service:
        assert service.ask("GET", PATH).status == 401
        address = str(listed(service, authorization=f"Bearer {TOKEN}")[REPORT]["href"])
        assert TOKEN not in address
        assert service.ask("GET", address).body == b"<p>all went well"
        assert (service.ask("HEAD", address).status, service.ask("HEAD", f"{PATH}/{REPORT}").status) == (200, 401)
        assert service.ask("GET", address.replace(REPORT, MODEL)).status == 401
        assert service.ask("GET", address.replace(f"/{REPORT}", "")).status == 401
        assert service.ask("POST", address, {}).status == 401
        assert service.ask("GET", address[:-1] + ("0" if address[-1] != "0" else "1")).status == 401
        over = f"{PATH}/{REPORT}?ticket={int(time.time()) - 1}.{'0' * 64}"
        refused = service.ask("GET", over)
        assert (refused.status, refused["message"]) == (
            401, f"the ticket is over; send {WAYS}, with the value of PREFLIGHT_API_TOKEN",
        )  # fmt: skip


@pytest.mark.usefixtures("model")
def test_the_head_of_a_file(service: Service) -> None:
    """The headers of the whole: a range counts for GET alone; the file is closed."""
    path = f"{PATH}/{MODEL}"
    whole = service.ask("GET", path)
    for headers in ({}, {"range": "bytes=1-2"}):
        head = service.ask("HEAD", path, headers=headers)
        assert (head.status, head.headers, head.body) == (200, whole.headers, b"")
    assert service.ask("HEAD", path, headers={"if-none-match": whole.headers["etag"]}).status == 304
    wait_until(lambda: not any(MODEL in one.path for one in psutil.Process(service.process.pid).open_files()))


def test_a_ticket_ends_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    tickets, now = Tickets(TOKEN), time.time()
    ticket = tickets.address("/a").partition("ticket=")[2]
    assert tickets.accepts("/a", ticket)
    assert not tickets.accepts("/b", ticket)
    assert not Tickets("another-token-of-letters").accepts("/a", ticket)
    assert not Tickets(None).accepts("/a", ticket)
    assert not tickets.accepts("/a", ticket.replace(".", ".x"))
    monkeypatch.setattr(time, "time", lambda: now + SECONDS + 1)
    assert not tickets.accepts("/a", ticket)


def test_a_large_report_is_not_kept_in_memory(service: Service, model: Path) -> None:
    """50 MB, eight times: the service grows by less than one of them."""
    content = os.urandom(1 << 20) * 50
    (model / REPORT).write_bytes(content)
    memory = psutil.Process(service.process.pid).memory_info
    assert service.ask("GET", f"{PATH}/{REPORT}").body == content  # whatever a first download brings
    before = memory().rss
    for _ in range(8):
        assert len(service.ask("GET", f"{PATH}/{REPORT}").body) == len(content)
    assert memory().rss - before < len(content) // 2


def test_a_client_that_leaves_closes_the_file(service: Service, model: Path) -> None:
    (model / REPORT).write_bytes(b"x" * (8 << 20))
    process = psutil.Process(service.process.pid)
    for _ in range(5):
        with service.connect() as connection:
            connection.sendall(f"GET {PATH}/{REPORT} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            connection.recv(1000)
    for _ in range(100):
        if not [file for file in process.open_files() if file.path.endswith(REPORT)]:
            return
        time.sleep(0.1)
    raise AssertionError(process.open_files())


@pytest.mark.slow
def test_files_of_an_object_store(
    shared_settings: Settings, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the artifact URL where the disk has none; only with a manifest; an unreachable store is 502."""
    finish(redis, "far")
    with objects() as store:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": store.url, "AWS_MAX_ATTEMPTS": "1"}.items():
            monkeypatch.setenv(name, value)
        remote = shared_settings.model_copy(update={"artifact_url": f"s3://{BUCKET}/models"})
        path = f"/v1/jobs/far/files/{MODEL}"
        with serving(remote, tmp_path) as service:
            store.ask("PUT", f"/{BUCKET}/models/far/{MODEL}", WEIGHTS)
            assert service.ask("GET", path).status == 404
            store.ask("PUT", f"/{BUCKET}/models/far/{MANIFEST}", json.dumps({"job_id": "far"}).encode())
            assert service.ask("GET", "/v1/jobs/far/files")["source"] == "url"
            assert {*listed(service, "/v1/jobs/far/files")} == {MODEL, MANIFEST}
            assert service.ask("GET", path).body == WEIGHTS
            part: Answer = service.ask("GET", path, headers={"range": "bytes=-5"})
            assert (part.status, part.body) == (206, WEIGHTS[-5:])
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with serving(remote, tmp_path) as service:
            refused = service.ask("GET", "/v1/jobs/far/files")
            assert (refused.status, refused["reason"]) == (502, "artifact_unreachable")
            assert service.ask("GET", "/v1/jobs").status == 200
