"""Models with names over HTTP: promoted, asked about pictures by many at once, swapped and rolled back meanwhile."""

import base64
import gzip
import http.client
import json
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from io import BytesIO
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image, ImageDraw
from pydantic import TypeAdapter
from redis import Redis
from support.files.named_models import finish_job
from support.web.service import JSON, OBJECTS, Answer, Service, serving
from support.worker.services import wait_until

from preflight.recognizer.onnx import ONNX
from training.artifacts.model_dir import MANIFEST, MODEL
from worker.config.settings import Settings
from worker.web.auth import MAX_PREDICT_BYTES
from worker.web.predicting.service import MAX_WAITING

PNG = {"content-type": "image/png"}
PREDICT = "/v1/models/production/predict"
PROBABILITIES = TypeAdapter(dict[str, float])


@pytest.fixture(scope="module")
def digit() -> bytes:
    """Return a zero as PNG."""
    image = Image.new("L", (100, 100), "white")
    ImageDraw.Draw(image).ellipse((30, 15, 70, 85), outline="black", width=9)
    return encoded(image, "PNG")


def encoded(image: Image.Image, kind: str) -> bytes:
    file = BytesIO()
    image.save(file, kind)
    return file.getvalue()


@pytest.fixture
def hashes(settings: Settings, raw: Redis) -> list[str]:
    """Sha256 of the models of the jobs a and b."""
    return [finish_job(raw, settings.artifact_dir, job, seed) for seed, job in enumerate(("a", "b"))]


@pytest.fixture
def service(settings: Settings, hashes: list[str], tmp_path: Path) -> Iterator[Service]:
    """A web service whose alias `production` is the model of job a."""
    assert hashes
    with serving(settings, tmp_path) as started:
        assert promote(started, "a").status == 200
        yield started


def objects(found: object) -> list[dict[str, object]]:
    return OBJECTS.validate_python(found)


def promote(service: Service, job: str, **fields: object) -> Answer:
    body = json.dumps({"job_id": job, **fields}).encode()
    return service.ask("POST", "/v1/models/production/promote", body, JSON)


def test_a_model_is_promoted_asked_and_rolled_back(service: Service, hashes: list[str], digit: bytes) -> None:
    answer = service.ask("POST", PREDICT, digit, PNG)
    assert answer.status == 200, answer.body
    probabilities = PROBABILITIES.validate_python(answer["probabilities"])
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-4)
    assert probabilities[str(answer["class"])] == answer["probability"] == max(probabilities.values())
    assert (answer["model_sha256"], answer["uncertain"]) == (hashes[0], None)

    several = json.dumps({"images": [base64.b64encode(each).decode() for each in (digit, b"no picture")]}).encode()
    first, second = objects(service.ask("POST", PREDICT, several, JSON)["predictions"])
    assert first["probabilities"] == pytest.approx(probabilities, abs=1e-5)
    assert "no picture in PNG or JPEG" in str(second["error"])
    assert len({answer["id"], first["id"], second["id"]}) == 3

    form = b"".join(
        b'--xyz\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n'
        b"Content-Type: image/png\r\n\r\n" + digit + b"\r\n" for _ in range(3)
    )  # fmt: skip
    kind = {"content-type": 'multipart/form-data; boundary="xyz"'}
    found = objects(service.ask("POST", PREDICT, form + b"--xyz--\r\n", kind)["predictions"])
    assert [one["class"] for one in found] == [answer["class"]] * 3
    field = b'--xyz\r\nContent-Disposition: form-data; name="note"\r\n\r\nmine\r\n'
    found = objects(service.ask("POST", PREDICT, field + form + b"--xyz--\r\n", kind)["predictions"])
    assert [one["class"] for one in found] == [answer["class"]] * 3
    refused = service.ask("POST", PREDICT, field + b"--xyz--\r\n", kind)
    assert (refused.status, "has 0 pictures" in str(refused["message"])) == (422, True)

    (current,) = objects([promote(service, "b", by="me", why="better")["current"]])
    assert current["job_id"] == "b"
    assert service.ask("POST", PREDICT, digit, PNG)["model_sha256"] == hashes[1]
    assert promote(service, "a", expect=1).status == 409
    back = service.ask("POST", "/v1/models/production/rollback", b"{}", JSON)
    assert objects([back["current"]])[0]["action"] == "rollback"
    assert service.ask("POST", PREDICT, digit, PNG)["model_sha256"] == hashes[0]
    (listed,) = objects(service.ask("GET", "/v1/models")["models"])
    assert (listed["alias"], objects([listed["current"]])[0]["number"]) == ("production", 3)
    history = objects(service.ask("GET", "/v1/models/production")["history"])
    assert [(one["by"], one["why"]) for one in history][1] == ("me", "better")
    metrics = service.ask("GET", "/metrics").body.decode()
    assert f'preflight_predict_labels_total{{alias="production",label="{answer["class"]}"}}' in metrics
    assert 'preflight_predict_requests_total{alias="production",status="200"} 6.0' in metrics
    assert "preflight_predict_seconds_bucket" in metrics
    assert service.ask("DELETE", f"/v1/models/production@{hashes[0]}").status == 422  # in use
    assert service.ask("DELETE", "/v1/models/production").status == 204
    assert service.ask("POST", PREDICT, digit, PNG).status == 404


def test_bad_requests_are_refused_in_a_sentence(service: Service, digit: bytes) -> None:
    def refused(body: bytes, kind: str = "image/png", path: str = PREDICT, **more: str) -> tuple[int, str]:
        answer = service.ask("POST", path, body, {"content-type": kind, **more})
        assert answer.body.count(b"\n") == 0
        return answer.status, str(answer["message"])

    assert refused(digit, "text/plain")[0] == 415
    status, message = refused(gzip.compress(digit), **{"content-encoding": "gzip"})
    assert status == 415 and "'gzip'" in message, message
    assert refused(digit, path="/v1/models/nobody/predict")[0] == 404
    assert refused(b"{", "application/json")[0] == 400
    for body in (b"[]", b"{}", b'{"images": []}', b'{"images": ["?"]}', b'{"images": [1]}', b'{"images": "a"}'):
        assert refused(body, "application/json")[0] == 422, body
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        assert refused(b"--x\r\n\r\n", kind)[0] == 422
    pictures = {
        "one colour": encoded(Image.new("L", (50, 50), "white"), "PNG"),
        "30,000 x 1,000": encoded(Image.new("1", (30_000, 1_000)), "PNG"),
        "one colour ": encoded(Image.new("L", (1, 1)), "PNG"),
        "one colour  ": encoded(Image.new("L", (30_000, 1)), "PNG"),
        "PNG or JPEG": b"\0\0\0\x18ftypheic",
        "animated": animated(),
        "empty": b"",
    }
    for words, picture in pictures.items():
        status, message = refused(picture)
        assert (status, words.strip() in message) == (422, True), message
    wide = np.zeros((100, 100), np.uint16)
    wide[20:80, 40:60] = 60_000
    for image in (Image.fromarray(wide), Image.new("CMYK", (90, 90))):
        if image.mode == "CMYK":
            ImageDraw.Draw(image).rectangle((40, 20, 50, 70), fill=(0, 0, 0, 255))
        kind = "JPEG" if image.mode == "CMYK" else "PNG"
        assert service.ask("POST", PREDICT, encoded(image, kind), PNG).status == 200, image.mode
    with service.connect() as connection:
        head = f"POST {PREDICT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {200 << 20}\r\n\r\n"
        connection.sendall(head.encode())
        assert b" 413 " in connection.recv(1000)
    assert MAX_PREDICT_BYTES < 200 << 20
    for body in (b"{}", b'{"job_id": "../a"}', b'{"job_id": "a", "x": 1}', b"[]"):
        assert service.ask("POST", "/v1/models/x/promote", body, JSON).status == 422
    assert service.ask("POST", "/v1/models/x/promote", b'{"job_id": "nobody"}', JSON).status == 404
    assert service.ask("POST", "/v1/models/x/rollback", b"{}", JSON).status == 404
    assert service.ask("GET", "/v1/models/..%2fx").status in (404, 422)


def test_bodies_of_other_clients(service: Service, digit: bytes) -> None:
    """Headers and queries as other libraries write them; what no client should send is refused without a list of it."""
    image = base64.b64encode(digit).decode()
    for wrong in ("data:image/png;base64," + image, base64.encodebytes(digit).decode(), None):
        body = json.dumps({"images": [image, wrong]}).encode()
        refused = service.ask("POST", PREDICT, body, JSON)
        assert str(refused["message"]).startswith("images[1] is '"), refused.body
        assert "without line breaks and without `data:`" in str(refused["message"])
    form = b'--a;b\r\nContent-Disposition: form-data; name="image"\r\n\r\n' + digit + b"\r\n--a;b--\r\n"
    for kind in ('multipart/form-data; charset=utf-8; boundary="a;b"', 'Multipart/Form-Data; BOUNDARY="a;b"'):
        assert service.ask("POST", PREDICT, form, {"content-type": kind}).status == 200, kind
    assert "reading" in service.ask("POST", f"{PREDICT}?reading=True", digit, PNG).body.decode()
    assert service.ask("POST", PREDICT, digit, PNG).status == 200
    before = psutil.Process(service.process.pid).memory_info().rss
    most = MAX_PREDICT_BYTES - 100
    many = {
        "application/json": b'{"images":[' + b"[]," * (most // 3) + b"[]]}",
        "multipart/form-data; boundary=x": b"--x\r\n" * (most // 5) + b"--x--",
    }
    for kind, body in many.items():
        refused = service.ask("POST", PREDICT, body, {"content-type": kind})
        assert (refused.status, "may have 1 to 1,024" in str(refused["message"])) == (422, True)
    assert psutil.Process(service.process.pid).memory_info().rss < before + (80 << 20)  # 270 MiB as a list


@pytest.mark.parametrize("alias", ["production", "nobody"])
def test_refused_bodies_are_not_kept(service: Service, alias: str) -> None:
    """An exception with its frames is a cycle, and the collector runs too seldom for bodies of 8 MiB."""
    path, body = f"/v1/models/{alias}/predict", b"x" * MAX_PREDICT_BYTES
    for number in range(16):
        assert service.ask("POST", path, body, PNG).status in (404, 422)
        if number == 3:
            before = psutil.Process(service.process.pid).memory_info().rss
    assert psutil.Process(service.process.pid).memory_info().rss < before + (48 << 20)


def test_names_that_were_made_up_are_no_labels(service: Service, digit: bytes) -> None:
    assert service.ask("POST", PREDICT, digit, PNG).status == 200
    for number in range(3):
        assert (
            service.ask("POST", f"/v1/models/ghost{number}/predict", digit, {"content-type": "text/plain"}).status
            == 415
        )
        assert service.ask("POST", f"/v1/models/-ghost{number}/predict", digit, PNG).status == 422
    assert service.ask("POST", PREDICT, digit, {"content-type": "text/plain"}).status == 415
    metrics = service.ask("GET", "/metrics").body.decode()
    assert "ghost" not in metrics
    assert 'preflight_predict_requests_total{alias="",status="415"} 3.0' in metrics
    assert 'preflight_predict_requests_total{alias="production",status="415"} 1.0' in metrics


@pytest.mark.parametrize("change", ["replaced", "gone"])
def test_a_new_process_loads_nothing_that_was_not_promoted(
    service: Service, settings: Settings, digit: bytes, change: str
) -> None:
    """Whoever can write to the disk waits for the process to end by itself."""
    assert service.ask("POST", PREDICT, digit, PNG).status == 200
    (kept,) = (settings.artifact_dir / "~models" / "~kept").glob("*")
    if change == "replaced":
        (kept / ONNX).unlink()
        shutil.copy(settings.artifact_dir / "b" / ONNX, kept / ONNX)
    else:
        shutil.rmtree(kept)
    assert service.ask("POST", PREDICT, digit, PNG).status == 200  # from memory
    (process,) = psutil.Process(service.process.pid).children()
    process.kill()
    refused = service.ask("POST", PREDICT, digit, PNG)
    assert (refused.status, refused["reason"]) == (503, "artifact_error"), refused.body
    assert promote(service, "a", expect=1).status == 200
    assert service.ask("POST", PREDICT, digit, PNG).status == 200


def animated() -> bytes:
    file = BytesIO()
    frames = [Image.new("L", (40, 40), colour) for colour in (0, 128, 255)]
    frames[0].save(file, "PNG", save_all=True, append_images=frames[1:])
    return file.getvalue()


def test_models_are_swapped_without_a_failed_request(
    service: Service, hashes: list[str], digit: bytes, settings: Settings, raw: Redis
) -> None:
    """While many ask: promotions, a removed job, a killed process. Each answer is of one of the two models."""
    stop = threading.Event()

    def ask() -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)) as connection:
            while not stop.is_set() or len(found) < 5:
                connection.request("POST", PREDICT, digit, PNG)
                response = connection.getresponse()
                body = json.loads(response.read())
                found.append((response.status, str(body.get("model_sha256", body))))
        return found

    assert service.ask("POST", PREDICT, digit, PNG).status == 200
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask) for _ in range(8)]
        for job in ("b", "a", "b", "a", "b"):
            assert promote(service, job).status == 200
        (settings.artifact_dir / "b" / MODEL).unlink()  # the alias keeps it
        (process,) = psutil.Process(service.process.pid).children()
        process.kill()
        wait_until(lambda: process not in psutil.Process(service.process.pid).children())
        finish_job(raw, settings.artifact_dir, "b", 1)
        for job in ("a", "b"):
            assert promote(service, job).status == 200
        stop.set()
        answers = [one for future in asking for one in future.result()]
    assert {status for status, _ in answers} == {200}
    assert {sha256 for _, sha256 in answers} == set(hashes)
    assert len(answers) >= 40


def test_an_alias_is_deleted_while_it_answers(service: Service, digit: bytes) -> None:
    """Each answer is a prediction, or says that there is no such alias; promoted again, it answers."""

    def ask(number: int) -> int:
        if number == 100:
            return service.ask("DELETE", "/v1/models/production").status
        return service.ask("POST", PREDICT, digit, PNG).status

    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(ask, range(200))]
    assert found.pop(100) == 204
    assert {*found} <= {200, 404}
    assert found[0] == 200
    assert service.ask("POST", PREDICT, digit, PNG).status == 404
    assert promote(service, "b").status == 200
    assert service.ask("POST", PREDICT, digit, PNG).status == 200


def test_clients_that_hang_keep_nobody_from_an_answer(service: Service, digit: bytes) -> None:
    """A body that does not come holds no place among the requests that wait."""
    head = f"POST {PREDICT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {MAX_PREDICT_BYTES}\r\n\r\n".encode()
    hanging = [service.connect() for _ in range(MAX_WAITING + 20)]
    for connection in hanging:
        connection.sendall(head + b"x")
    assert service.ask("POST", PREDICT, digit, PNG).status == 200
    for connection in hanging:
        connection.close()
    assert b"preflight_predict_waiting 0.0" in service.ask("GET", "/metrics").body


@pytest.mark.parametrize("beyond", [20, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_that_wait_are_refused_and_clients_may_leave(service: Service, digit: bytes, beyond: int) -> None:
    """Those beyond the bound are answered at once, whatever the others do, and cost no memory."""
    assert service.ask("POST", PREDICT, digit, PNG).status == 200
    (process,) = psutil.Process(service.process.pid).children()
    process.send_signal(signal.SIGSTOP)
    head = (
        f"POST {PREDICT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/png\r\ncontent-length: {len(digit)}\r\n\r\n"
    )
    connections = [service.connect() for _ in range(MAX_WAITING)]
    for connection in connections:
        connection.sendall(head.encode() + digit)
    wait_until(lambda: f"preflight_predict_waiting {MAX_WAITING}.0".encode() in service.ask("GET", "/metrics").body)
    before = psutil.Process(service.process.pid).memory_info().rss
    with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)) as another:
        for _ in range(beyond):
            another.request("POST", PREDICT, digit, PNG)
            refused = another.getresponse()
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            refused.read()
    assert psutil.Process(service.process.pid).memory_info().rss < before + (16 << 20)
    for connection in connections[:100]:  # they leave
        connection.close()
    process.send_signal(signal.SIGCONT)
    for connection in connections[100:MAX_WAITING]:
        assert b" 200 " in connection.recv(2000)
    for connection in connections[100:]:
        connection.close()
    assert service.ask("POST", PREDICT, digit, PNG).status == 200
    assert b"preflight_predict_waiting 0.0" in service.ask("GET", "/metrics").body


def test_damaged_models_answer_with_the_reason(
    service: Service, hashes: list[str], settings: Settings, digit: bytes
) -> None:
    (settings.artifact_dir / "b" / MANIFEST).write_bytes(b"{}")
    assert promote(service, "b").status == 422
    kept = settings.artifact_dir / "~models" / "~kept"
    for path in kept.glob(f"*/{MODEL}"):
        path.unlink()
        path.write_bytes(b"x")
    refused = service.ask("POST", PREDICT, digit, PNG)
    assert (refused.status, refused["reason"]) == (503, "artifact_error")
    assert hashes[0][:12] in str(refused["message"])


def test_a_read_only_service_changes_nothing(settings: Settings, hashes: list[str], tmp_path: Path) -> None:
    assert hashes
    with serving(settings.model_copy(update={"web_readonly": "on"}), tmp_path) as service:
        assert promote(service, "a").status == 403
        assert service.ask("DELETE", "/v1/models/production").status == 403
        assert service.ask("GET", "/v1/models")["models"] == []
