"""The process that predicts: replaced where it takes too much memory, and by torch where ONNX Runtime is absent."""

import asyncio
import json
import time
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw
from pydantic import JsonValue
from redis import Redis
from safetensors.torch import save as encode
from support.files.named_models import make_model
from support.web.service import JSON, serving

from training.artifacts.model_dir import save
from training.artifacts.predict_server import Asked
from training.models.factory import build
from worker.config.settings import Settings, child_environment
from worker.models.store import Author, ModelStore
from worker.web.predicting.process import PredictProcess
from worker.web.predicting.service import STALE_SECONDS, Predictions


@pytest.fixture
def artifact(settings: Settings, raw: Redis) -> Path:
    """The model of the finished job a: `cnn` with random weights."""
    raw.hset("rq:job:a", "status", "finished")
    torch.manual_seed(0)
    reads: dict[str, JsonValue] = {"shape": [1, 28, 28], "classes": 10, "mean": 33.3, "std": 78.6, "filled": 20 / 28}
    spec: dict[str, JsonValue] = {"model": "cnn", "dataset": "mnist"}
    weights = encode(build("cnn", (1, 28, 28), 10).state_dict())
    return save(settings.artifact_dir / "a", [weights], {"job_id": "a", "spec": spec, "input": reads}).directory


@pytest.fixture(scope="module")
def digit() -> bytes:
    image, file = Image.new("L", (100, 100), "white"), BytesIO()
    ImageDraw.Draw(image).ellipse((30, 15, 70, 85), outline="black", width=9)
    image.save(file, "PNG")
    return file.getvalue()


def test_a_process_with_too_much_memory_is_replaced(settings: Settings, digit: bytes) -> None:
    """Requests that come meanwhile are answered by the next one, and all answers are the same."""
    digest = make_model(settings.artifact_dir, "b", 0)
    asked = Asked(model=str(settings.artifact_dir / "b"), version="1", sha256=digest)

    async def ask() -> tuple[list[bytes], int]:
        process, deadline = PredictProcess(child_environment()), time.monotonic() + 60
        try:
            answers = [(await process.ask(asked, [digit])).body]
            assert process._connection is not None
            process._connection._max_memory = 0
            while process.starts < 2 and time.monotonic() < deadline:
                answers.append((await process.ask(asked, [digit])).body)
                await asyncio.sleep(0.02)
            return answers, process.starts
        finally:
            await process.close()

    answers, starts = asyncio.run(ask())
    assert starts == 2
    assert len({json.dumps({**json.loads(each), "id": ""}) for each in answers}) == 1


def test_an_alias_that_nobody_asked_for_a_while_is_read_first(settings: Settings) -> None:
    """Of two requests at once after a promotion by command line, neither is answered by the former model."""
    store, author = ModelStore(settings.artifact_dir, None), Author(by="a test")
    hashes = [make_model(settings.artifact_dir, job, seed) for seed, job in enumerate(("b", "c"))]
    store.promote("production", settings.artifact_dir / "b", author)

    async def ask() -> list[str]:
        predictions = Predictions(store)
        found = [await predictions.model("production")]
        store.promote("production", settings.artifact_dir / "c", author)
        await asyncio.sleep(STALE_SECONDS)
        found += await asyncio.gather(*(predictions.model("production") for _ in range(3)))
        return [one.sha256 for one in found]

    assert asyncio.run(ask()) == [hashes[0], *[hashes[1]] * 3]


def test_without_onnx_runtime_torch_predicts(settings: Settings, artifact: Path, digit: bytes, tmp_path: Path) -> None:
    """The same as with it, on the same file of the promotion."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.modules['onnxruntime'] = None\n")
    found = []
    for site in ("", str(tmp_path / "site")):
        with serving(settings, tmp_path, PYTHONPATH=site) as service:
            promoted = service.ask("POST", "/v1/models/production/promote", {"job_id": artifact.name}, JSON)
            assert promoted.status == 200, promoted.body
            answer = service.ask("POST", "/v1/models/production/predict", digit, {"content-type": "image/png"})
            assert answer.status == 200, answer.body
            found.append(answer["probabilities"])
    assert found[0] == pytest.approx(found[1], abs=1e-4)
