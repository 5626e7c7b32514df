"""Named failures over HTTP: each is a `Problem` with its status, also of predictions, which no route answers."""

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path

import pytest

from preflight.errors import ArtifactError, DatasetError, InvalidConfig, MissingPackage, PreflightError, TimedOut
from training.artifacts.predict_server import Asked
from worker.config.settings import load
from worker.models.records import AliasChanged, UnknownAlias
from worker.models.store import open_store
from worker.web.listing.table import TooSlow
from worker.web.predicting.service import Predictions, PredictMiddleware
from worker.web.routes.errors import as_api_error


@pytest.mark.parametrize(("error", "status"), [
    (InvalidConfig, 422), (TooSlow, 422), (UnknownAlias, 404), (AliasChanged, 409), (DatasetError, 409),
    (MissingPackage, 501), (ArtifactError, 503), (TimedOut, 503),
])  # fmt: skip
def test_a_failure_has_its_status(error: type[PreflightError], status: int) -> None:
    """What may pass is 503."""
    found = as_api_error(error("it is wrong", field="x"))
    assert (found.status, found.problem.reason, found.problem.field) == (status, error.reason, "x")


class Failing(Predictions):
    async def model(self, alias: str) -> Asked:
        raise DatasetError(f"{alias} is damaged", field="alias")


def test_a_prediction_that_fails_is_a_problem(tmp_path: Path) -> None:
    """As where a route fails; nothing else would answer it."""
    sent: list[MutableMapping[str, object]] = []

    async def receive() -> MutableMapping[str, object]:
        return {"type": "http.request", "body": b"x"}

    async def send(message: MutableMapping[str, object]) -> None:
        sent.append(message)

    async def app(*_: object) -> None:
        raise AssertionError("the application is not asked")

    middleware = PredictMiddleware(app, Failing(open_store(load(state_dir=tmp_path, artifact_dir=tmp_path))))
    scope: dict[str, object] = {"type": "http", "method": "POST", "path": "/v1/models/production/predict"}
    scope["headers"] = [(b"content-type", b"image/png")]
    asyncio.run(middleware(scope, receive, send))
    assert sent[0]["status"] == 409
    body = sent[1]["body"]
    assert isinstance(body, bytes)
    assert json.loads(body) == {"reason": "dataset_error", "field": "alias", "message": "production is damaged"}
