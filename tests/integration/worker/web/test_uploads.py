"""Uploads over HTTP: a real web service, a real worker, real archives; what is refused leaves nothing behind."""

import http.client
import io
import json
import os
import signal
import struct
import time
import zipfile
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psutil
import pytest
from PIL import Image
from redis import Redis
from support.files.objects import BUCKET, CREDENTIALS
from support.files.pictures import SHAPES, drawn, imported, save_tree
from support.files.small_disk import megabyte
from support.web.service import OBJECTS, TOKEN, Answer, Service, serving
from support.worker.process_tree import command_line
from support.worker.services import StartWorker, wait_until

from preflight import Client, TrainJob
from preflight.redis import keys
from tools.faults.machines import free_port
from training.catalog.catalog import Catalog
from worker.config.settings import Settings
from worker.imports.records import ENDED

BINARY = {"content-type": "application/octet-stream"}


def packed(root: Path, *, more: dict[str, bytes] | None = None) -> bytes:
    """Return a zip of a folder."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(root.rglob("*.png")):
            archive.write(path, path.relative_to(root))
        for name, content in (more or {}).items():
            archive.writestr(name, content)
    return file.getvalue()


def upload(service: Service, name: str, body: bytes, query: str = "", **headers: str) -> Answer:
    return service.ask("POST", f"/v1/datasets/{name}?file=photos.zip{query}", body, {**BINARY, **headers})


def ended(service: Service, answer: Answer, seconds: float = 60) -> dict[str, object]:
    """Return the last state of an import that was accepted."""
    assert answer.status == 202, answer.body
    path = f"/v1/imports/{answer['import_id']}"
    wait_until(lambda: service.ask("GET", path)["status"] in ENDED, seconds)
    found = service.ask("GET", path).json
    assert isinstance(found, dict)
    return found


LARGE: Final = 512
"""Pixels of a side, so that an import takes a second at least: something can happen while it runs."""


def class_names(detail: Answer) -> list[object]:
    return [each["name"] for each in OBJECTS.validate_python(detail["classes"])]


def left(settings: Settings) -> list[str]:
    """Return the names of the uploads that are kept."""
    return sorted(path.name for path in (settings.data_dir / "uploads").glob("*"))


def test_what_is_dropped_on_the_page_becomes_a_data_set(
    service: Service, settings: Settings, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    """It waits for a worker, which says how far it is; the upload is removed; a job trains on it; it is removed."""
    archive = packed(save_tree(tmp_path / "photos", 12))
    began = time.monotonic()
    accepted = upload(service, "photos", archive, "&test=0.25")
    assert (accepted.status, accepted["status"], accepted["message"]) == (202, "waiting", "waits for a worker")
    assert time.monotonic() - began < 20
    assert accepted.headers["location"] == f"/v1/imports/{accepted['import_id']}"
    assert upload(service, "photos", archive)["reason"] == "import_open"
    assert len(left(settings)) == 1
    start_worker()
    done = ended(service, accepted)
    assert (done["status"], done["version"], done["is_new"]) == ("finished", "photos@1", True), done
    assert left(settings) == []
    version = Catalog(settings.data_dir).find("photos")
    assert (version.samples, version.source, version.asked["test"]) == (48, "photos.zip", 0.25)
    (listed,) = OBJECTS.validate_python(service.ask("GET", "/v1/datasets")["datasets"])
    assert (listed["name"], listed["versions"]) == ("photos", 1)
    detail = service.ask("GET", "/v1/datasets/photos")
    assert class_names(detail) == sorted(SHAPES)
    sample = service.ask("GET", "/v1/datasets/photos/samples?label=1&count=5")
    picture = Image.open(io.BytesIO(sample.body))
    assert (sample.headers["x-grid"], picture.size, picture.mode) == ("28,28,5", (140, 28), "L")
    again = ended(service, upload(service, "photos", archive, "&test=0.25"))
    assert (again["version"], again["is_new"]) == ("photos@1", False)
    wait_until(lambda: "photos@1" in client.datasets())
    client.enqueue(TrainJob(type="preflight.train.v1", dataset="photos", job_id="a", calibrate=False, epochs=200))
    assert service.ask("DELETE", "/v1/datasets/photos")["reason"] == "in_use"
    client.cancel("a")
    wait_until(lambda: client.status("a").status == "cancelled")
    removed = ended(service, service.ask("DELETE", "/v1/datasets/photos"))
    assert (removed["status"], removed["message"]) == ("finished", "removed photos@1")
    assert service.ask("GET", "/v1/datasets/photos").status == 404


def test_it_runs_beside_a_training_at_idle_priority(
    service: Service, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    """The events of the import are its states, up to the end."""
    job = {"type": "preflight.train.v1", "dataset": "digits", "job_id": "a", "calibrate": False, "epochs": 1_000}
    client.enqueue(TrainJob.model_validate(job, strict=True))
    worker = start_worker()
    wait_until(lambda: client.status("a").step is not None, 60)
    accepted = upload(service, "photos", packed(save_tree(tmp_path / "photos", 12)))
    own = psutil.Process(worker.process.pid)
    policies: list[int] = []

    def saw() -> bool:
        children = own.children(recursive=True)
        for pid in (each.pid for each in children if str(accepted["import_id"]) in command_line(each)):
            with suppress(ProcessLookupError):
                policies.append(os.sched_getscheduler(pid))
        return bool(policies)

    wait_until(saw, 20)
    wait_until(lambda: saw() and policies[-1] == os.SCHED_IDLE, 10)
    with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)) as connection:
        connection.request("GET", f"/v1/imports/{accepted['import_id']}/events")
        text = connection.getresponse().read().decode()
    states = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ") and len(line) > 10]
    assert states[-1]["status"] == "finished", states[-1]
    assert [state["seq"] for state in states] == sorted({state["seq"] for state in states})
    assert text.endswith("event: end\ndata: {}\n\n")
    assert client.status("a").status == "running"
    worker.stop()


@pytest.mark.slow
def test_a_worker_that_stops_leaves_it_to_another(
    service: Service, settings: Settings, connection: Redis, start_worker: StartWorker, tmp_path: Path
) -> None:
    accepted = upload(service, "photos", packed(save_tree(tmp_path / "photos", 60, side=LARGE)))
    path = f"/v1/imports/{accepted['import_id']}"
    first = start_worker()
    wait_until(lambda: service.ask("GET", path)["status"] == "running", 20)
    first.stop()
    state = service.ask("GET", path)
    assert (state["status"], state["attempts"]) == ("waiting", 0), state.body
    assert connection.exists(keys.lease(str(accepted["import_id"]))) == 0
    start_worker()
    done = ended(service, accepted)
    assert (done["status"], done["version"]) == ("finished", "photos@1"), done
    assert [*(settings.data_dir / "imported" / "work").glob("*/*")] == []


def began(service: Service, path: str, attempt: int) -> bool:
    return service.ask("GET", path)["attempts"] == attempt


@pytest.mark.slow
def test_a_killed_import_goes_on(
    service: Service, settings: Settings, start_worker: StartWorker, tmp_path: Path
) -> None:
    """After its lease has run out, and at most a few times: then it is refused, and the upload is kept for a day."""
    accepted = upload(service, "photos", packed(save_tree(tmp_path / "photos", 60, side=LARGE)))
    path = f"/v1/imports/{accepted['import_id']}"
    worker = psutil.Process(start_worker().process.pid)
    for attempt in range(1, 5):
        wait_until(partial(began, service, path, attempt), 40)
        for child in worker.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if str(accepted["import_id"]) in command_line(child):
                    child.send_signal(signal.SIGKILL)
    done = ended(service, accepted, 40)
    assert (done["status"], done["reason"]) == ("refused", "child_failed")
    assert len(left(settings)) == 1
    assert ended(service, upload(service, "photos", packed(tmp_path / "photos")))["status"] == "finished"


@pytest.mark.slow
def test_a_cancelled_import_leaves_nothing(
    service: Service, settings: Settings, start_worker: StartWorker, tmp_path: Path
) -> None:
    """While it waits, and while it runs."""
    archive = packed(save_tree(tmp_path / "photos", 60, side=LARGE))
    waiting = upload(service, "photos", archive)
    cancelled = service.ask("POST", f"/v1/imports/{waiting['import_id']}/cancel", {})
    assert (cancelled.status, cancelled["status"]) == (200, "cancelled")
    assert left(settings) == []
    assert service.ask("POST", f"/v1/imports/{waiting['import_id']}/cancel", {})["reason"] == "ended"
    start_worker()
    running = upload(service, "photos", archive)
    path = f"/v1/imports/{running['import_id']}"
    wait_until(lambda: service.ask("GET", path)["status"] == "running", 20)
    assert service.ask("POST", f"{path}/cancel", {}).status == 200
    assert ended(service, running)["status"] == "cancelled"
    assert left(settings) == []
    assert Catalog(settings.data_dir).versions() == []
    assert service.ask("GET", "/v1/datasets")["imports"] == []


def halved(service: Service, size: int, body: bytes) -> None:
    """Send a body that is shorter than it was said to be, and leave."""
    with service.connect() as connection:
        head = f"POST /v1/datasets/photos HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n"
        connection.sendall(head.encode() + b"content-type: application/zip\r\n\r\n" + body)


def test_an_upload_that_does_not_come_whole_is_none(service: Service, settings: Settings, tmp_path: Path) -> None:
    """It stops, or goes on behind what was said: what follows is another request, and none that is known."""
    halved(service, 1_000_000, b"x" * 300_000)
    wait_until(lambda: left(settings) == [] and (settings.data_dir / "uploads").exists(), 10)
    assert service.ask("GET", "/v1/datasets")["imports"] == []
    body = packed(save_tree(tmp_path / "photos", 2))
    with service.connect() as connection:
        head = f"POST /v1/datasets/photos HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        connection.sendall(head.encode() + b"content-type: application/zip\r\n\r\n" + 2 * body)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 202")
    assert len(left(settings)) == 1


def test_bounds_of_uploads(settings: Settings, tmp_path: Path) -> None:
    """By what is declared, and by what comes where nothing is declared; of all together; who may."""
    body = b"x" * 200_000
    with serving(settings, tmp_path, PREFLIGHT_MAX_UPLOAD_GB="0.0001") as service:
        refused = upload(service, "photos", body)
        assert (refused.status, refused["reason"]) == (413, "too_large")
        with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)) as connection:
            connection.request("POST", "/v1/datasets/photos", iter([body[:70_000], body]), BINARY, encode_chunked=True)
            assert connection.getresponse().status == 413
        assert left(settings) == []
    with serving(settings, tmp_path, PREFLIGHT_IMPORTS_GB="0.0001") as service:
        refused = upload(service, "photos", body)
        assert (refused.status, refused["reason"]) == (507, "store_full")
        assert "PREFLIGHT_IMPORTS_GB" in str(refused["message"])
    with serving(settings, tmp_path, PREFLIGHT_API_TOKEN=TOKEN, PREFLIGHT_WEB_READONLY="on") as service:
        allowed = {"authorization": f"Bearer {TOKEN}"}
        assert upload(service, "photos", body).status == 401
        assert upload(service, "photos", body, **allowed)["reason"] == "read_only"
        assert service.ask("DELETE", "/v1/datasets/photos", headers=allowed)["reason"] == "read_only"
        assert service.ask("GET", "/v1/datasets", headers=allowed)["read_only"] is True


@pytest.mark.slow
def test_a_store_that_is_full_or_none(settings: Settings, tmp_path: Path) -> None:
    body = b"x" * 200_000
    (tmp_path / "file").touch()
    with serving(settings, tmp_path, PREFLIGHT_UPLOAD_DIR=str(tmp_path / "file")) as service:
        refused = upload(service, "photos", body)
        assert (refused.status, refused["reason"]) == (503, "uploads_unavailable")
        assert str(tmp_path) not in str(refused["message"])
    with (
        megabyte(tmp_path / "disk") as disk,
        serving(settings, tmp_path, PREFLIGHT_UPLOAD_DIR=str(disk)) as service,
    ):
        refused = upload(service, "photos", 10 * body)
        assert (refused.status, refused["reason"]) == (507, "store_full")
        assert [*disk.iterdir()] == []
        assert upload(service, "photos", body).status == 202


def test_uploads_of_unknown_size_share_the_room(settings: Settings, tmp_path: Path) -> None:
    """Each counts as the largest one that it may become, so that all together stay within PREFLIGHT_IMPORTS_GB."""
    head = "HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/zip\r\ntransfer-encoding: chunked\r\n\r\n"
    with (
        serving(settings, tmp_path, PREFLIGHT_MAX_UPLOAD_GB="0.0001", PREFLIGHT_IMPORTS_GB="0.0002") as service,
        ExitStack() as stack,
    ):
        opened = []
        for number in range(2):
            opened.append(stack.enter_context(service.connect()))
            opened[-1].sendall(f"POST /v1/datasets/photos{number} {head}".encode() + b"%x\r\n" % 90_000 + bytes(90_000))
            wait_until(lambda: len(left(settings)) == len(opened), 10)
        assert upload(service, "photos", b"x")["reason"] == "store_full"
        for each in opened:
            each.sendall(b"\r\n0\r\n\r\n")
            assert each.recv(1 << 16).startswith(b"HTTP/1.1 202")
        assert upload(service, "photos", b"x" * 10_000).status == 202


def test_a_store_that_does_not_answer_is_named(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked how much it holds before the upload begins."""
    away = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}", "AWS_MAX_ATTEMPTS": "1", **CREDENTIALS}
    for name, value in away.items():
        monkeypatch.setenv(name, value)
    with serving(settings, tmp_path, PREFLIGHT_DATASET_URL=f"s3://{BUCKET}/data") as service:
        refused = upload(service, "photos", b"x")
        assert (refused.status, refused["reason"]) == (503, "uploads_unavailable"), refused.body
        assert service.ask("GET", "/v1/datasets")["reason"] == "dataset_error"


def test_what_cannot_be_imported_is_refused_before_it_is_sent(service: Service, settings: Settings) -> None:
    """Names, options, and what a page of another origin can send without asking first."""
    for name, query, status, says in (
        ("mnist", "", 422, "registered data set"), ("Photos", "", 422, "no name of a data set"),
        ("..", "", 422, "no name of a data set"), (quote("a/b", safe=""), "", 404, ""),
        ("photos", "&size=256", 422, "from 1 to 128"),
        ("photos", "&test=2", 422, "share from 0 to 0.9"), ("photos", "&ink=red", 422, "which it may not be"),
        ("photos", "&format=exe", 422, "use one of tree"), ("photos", "&channels=" + "x" * 99, 422, "channels"),
    ):  # fmt: skip
        refused = upload(service, name, b"x", query)
        assert refused.status == status, refused.body
        assert says in str(refused["message"])
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"):
        assert upload(service, "photos", b"x", **{"content-type": kind}).status == 415
    assert left(settings) == []


def test_bad_archives_are_refused_with_their_reason(
    service: Service, settings: Settings, start_worker: StartWorker, tmp_path: Path
) -> None:
    """A million empty entries, markup as names, a bomb, a format whose package this worker lacks."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "pyarrow.py").write_text("raise ImportError('no module named pyarrow')")
    start_worker(environment={"PYTHONPATH": os.pathsep.join([str(blocked), os.environ.get("PYTHONPATH", "")])})
    entry = b"PK\1\2" + bytes(24) + struct.pack("<HHHHHII", 1, 0, 0, 0, 0, 0, 0) + b"a"
    record = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 10**6, 10**6, 10**6 * len(entry), 0)
    tail = record + b"PK\6\7" + struct.pack("<IQI", 0, 10**6 * len(entry), 1)
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    local = b"PK\3\4" + bytes(26)
    million = ended(service, upload(service, "million", local + entry * 10**6 + tail + end))
    assert (million["status"], million["reason"]) == ("refused", "dataset_error")
    assert "1,000,000 entries" in str(million["message"])
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.png", bytes(200 << 20))
    said = ended(service, upload(service, "bomb", bomb.getvalue()))
    assert "unpacks to more than" in str(said["message"])
    parquet = service.ask("POST", "/v1/datasets/hub?file=a.parquet", b"PAR1" + bytes(100) + b"PAR1", BINARY)
    said = ended(service, parquet)
    assert said["reason"] == "missing_package", said
    assert "parquet" in str(said["message"])
    assert len(left(settings)) == 3
    markup = "<img src=x onerror=alert(1)>"
    root = save_tree(tmp_path / "photos", 12, (markup, "b"))
    body = packed(root, more={"b/<script>.png": b"<script>alert(1)</script>"})
    said = ended(
        service, service.ask("POST", f"/v1/datasets/marks?file={quote(markup)}&max_refused=5%25", body, BINARY)
    )
    assert said["status"] == "finished", said
    detail = service.ask("GET", "/v1/datasets/marks")
    assert class_names(detail) == [markup, "b"]
    assert detail.headers["content-type"] == "application/json"


def test_nothing_but_the_object_store_is_shared(settings: Settings, start_worker: StartWorker, tmp_path: Path) -> None:
    """The web service streams to it, a worker fetches from it, and the pictures come back from it."""
    bucket = (tmp_path / "bucket").as_uri()
    own = str(tmp_path / "web")
    with serving(settings, tmp_path, PREFLIGHT_DATASET_URL=bucket, PREFLIGHT_DATA_DIR=own) as service:
        accepted = upload(service, "photos", packed(save_tree(tmp_path / "photos", 12, mode="RGB")))
        assert [path.name for path in (tmp_path / "bucket" / "uploads").iterdir()] == [f"{accepted['import_id']}.zip"]
        start_worker(environment={"PREFLIGHT_DATASET_URL": bucket})
        assert ended(service, accepted)["version"] == "photos@1"
        assert [*(tmp_path / "bucket" / "uploads").iterdir()] == []
        assert service.ask("GET", "/v1/datasets/photos")["has_samples"] is True
        picture = Image.open(io.BytesIO(service.ask("GET", "/v1/datasets/photos/samples?label=0&count=1").body))
        assert (picture.size, picture.mode) == ((28, 28), "RGB")


def test_the_grid_shows_the_pictures_of_the_class(service: Service, settings: Settings, tmp_path: Path) -> None:
    """Those that train, then those of the test; of larger pictures every second pixel. An alias keeps all of it."""
    source = save_tree(tmp_path / "photos", 9, ("a", "b"), side=80)
    version = imported(settings.data_dir, source, "photos", size=(80, 80), ink="light")
    count = version.classes[1].train + version.classes[1].validation + version.classes[1].test
    pages = [service.ask("GET", f"/v1/datasets/photos/samples?label=1&first={first}&count=5") for first in (0, 5)]
    assert sum(len(page.headers["x-samples"].split(",")) for page in pages) == count
    found = set()
    for page in pages:
        grid, (width, height, columns) = Image.open(io.BytesIO(page.body)), map(int, page.headers["x-grid"].split(","))
        for place in range(len(page.headers["x-samples"].split(","))):
            left_, top = place % columns * width, place // columns * height
            found.add(grid.crop((left_, top, left_ + width, top + height)).tobytes())
    assert len(found) == count
    assert len(found & {shrunk(seed) for seed in range(9)}) == count
    Catalog(settings.data_dir).alias("production", "photos@1")
    refused = service.ask("DELETE", "/v1/datasets/photos")
    assert (refused.status, refused["field"]) == (422, "alias")
    assert service.ask("DELETE", "/v1/datasets/photos@7").status == 404
    assert service.ask("GET", "/v1/datasets/photos@1/samples?label=99").status == 404
    assert service.ask("GET", "/v1/imports/0123456789abcdef/events").status == 404


def shrunk(seed: int) -> bytes:
    """Return every second pixel of a picture."""
    picture = drawn(SHAPES[1], 10_000 + seed, 80)
    return b"".join(picture.tobytes()[80 * y : 80 * y + 80 : 2] for y in range(0, 80, 2))
