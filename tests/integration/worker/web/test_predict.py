"""Predictions over HTTP: as `preflight predict`, within bounds, by one process that is started once."""

import json
import signal
from io import BytesIO
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image, ImageDraw
from pydantic import TypeAdapter
from redis import Redis
from support.files.objects import BUCKET, CREDENTIALS, objects
from support.web.service import Answer, Service, service_of, serving
from support.worker.command_line import run
from support.worker.services import RunWorker, digits_job, wait_for, wait_until

from preflight import Client
from training.artifacts.model_dir import MANIFEST, MODEL
from worker.config.settings import Settings
from worker.web.auth import MAX_PICTURE_BYTES
from worker.web.predicting.process import MAX_PIXELS

PATH = "/v1/jobs/done/predict"
PNG = {"content-type": "image/png"}
PROBABILITIES = TypeAdapter(list[float])


@pytest.fixture
def model(client: Client, run_worker: RunWorker, settings: Settings) -> Path:
    client.enqueue(digits_job(job_id="done", epochs=3))
    run_worker()
    assert wait_for(client, "done").status == "finished"
    return settings.artifact_dir / "done"


def picture(size: int = 200, mode: str = "RGB") -> bytes:
    """Return a zero, drawn in ink."""
    image = Image.new(mode, (size, size), "white")
    place = (size // 4, size // 8, 3 * size // 4, 7 * size // 8)
    ImageDraw.Draw(image).ellipse(place, outline="black", width=size // 12)
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def listeners(service: Service) -> list[psutil.Process]:
    return psutil.Process(service.process.pid).children()


@pytest.mark.covers_children
def test_a_picture_is_recognized(settings: Settings, model: Path, raw: Redis, tmp_path: Path) -> None:
    """With the probabilities of `preflight predict`; refused pictures end no process, a killed process is replaced."""
    (tmp_path / "zero.png").write_bytes(picture())
    printed = run("predict", str(model), str(tmp_path / "zero.png"), "--json")
    assert printed.exit_code == 0, printed.output
    expected = json.loads(printed.stdout)
    raw.hset("rq:job:waits", "status", "queued")
    with serving(settings, tmp_path) as service:
        assert service.ask("GET", "/v1/jobs/done/files")["predicts"] is True
        found = service.ask("POST", PATH, picture(), PNG)
        assert (found.status, found["label"]) == (200, expected["label"])
        probabilities = PROBABILITIES.validate_python(found["probabilities"])
        assert probabilities == pytest.approx(expected["probabilities"], abs=1e-6)
        (listener,) = listeners(service)

        def refused(body: bytes, headers: dict[str, str] = PNG, path: str = PATH) -> tuple[int, object]:
            answer = service.ask("POST", path, body, headers)
            return answer.status, answer["reason"]

        for body in (b"", b"<script>alert(1)</script>", picture()[:-30], picture(8000), blank()):
            assert refused(body) == (422, "invalid_config"), body[:20]
        assert str(tmp_path) not in str(service.ask("POST", PATH, b"x", PNG)["message"])
        assert f"at most {MAX_PIXELS:,}" in str(service.ask("POST", PATH, picture(8000), PNG)["message"])
        with service.connect() as connection:  # refused by its length alone
            head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {MAX_PICTURE_BYTES + 1}\r\n\r\n"
            connection.sendall(head.encode())
            assert b" 413 " in connection.recv(1000)
        assert refused(picture(), {"content-type": "application/json"}) == (415, "wrong_content_type")
        assert refused(picture(), {**PNG, "sec-fetch-site": "cross-site"}) == (403, "cross_site")
        assert refused(picture(), path="/v1/jobs/nobody/predict") == (404, "unknown_job")
        assert refused(picture(), path="/v1/jobs/waits/predict") == (409, "file_unavailable")
        assert listeners(service) == [listener]

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the service decides when it ends
            listener.send_signal(number)
        assert service.ask("POST", PATH, picture(), PNG)["label"] == expected["label"]
        assert listeners(service) == [listener]
        listener.kill()
        wait_until(lambda: not listener.is_running() or listener.status() == psutil.STATUS_ZOMBIE)
        again: Answer = service.ask("POST", PATH, picture(), PNG)
        assert again["label"] == expected["label"]
        (model / MODEL).write_bytes(b"damaged")
        (model / MANIFEST).touch()
        assert refused(picture()) == (503, "artifact_error")  # the picture is not at fault


@pytest.mark.slow
def test_every_process_of_the_service_is_asked_to_stop(settings: Settings, model: Path, tmp_path: Path) -> None:  # noqa: ARG001 - the model is asked
    """As by systemd: it exits with 0, and the prediction's process ends with it."""
    service = service_of(settings, tmp_path)
    service.start()
    assert service.ask("POST", PATH, picture(), PNG).status == 200
    (listener,) = listeners(service)
    for process in (listener, psutil.Process(service.process.pid)):
        process.send_signal(signal.SIGTERM)
    assert service.process.wait(20) == 0, service.log.read_text()
    assert psutil.wait_procs([listener], timeout=10)[1] == []


def blank() -> bytes:
    file = BytesIO()
    Image.fromarray(np.full((50, 50), 255, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.slow
def test_a_model_in_an_object_store(
    settings: Settings, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fetched once."""
    with objects() as store:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": store.url, "AWS_MAX_ATTEMPTS": "1"}.items():
            monkeypatch.setenv(name, value)
        for name in (MODEL, MANIFEST):
            store.ask("PUT", f"/{BUCKET}/done/{name}", (model / name).read_bytes())
        remote = {"artifact_url": f"s3://{BUCKET}", "artifact_dir": tmp_path / "none"}
        with serving(settings.model_copy(update=remote), tmp_path) as service:
            answers = [service.ask("POST", PATH, picture(), PNG) for _ in range(2)]
            assert [answer.status for answer in answers] == [200, 200]
            assert answers[0]["label"] == answers[1]["label"]
        reads = [line for line in store.passed_on if line == f"GET /{BUCKET}/done/{MODEL}"]
        assert len(reads) == 1
