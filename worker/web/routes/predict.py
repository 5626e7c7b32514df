"""Predictions: what a finished model sees in a picture."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fastapi import FastAPI, Request
from pydantic import JsonValue
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from preflight import Client
from preflight.errors import InvalidConfig, MissingPackage, PreflightError
from preflight.wire import JobState
from training.artifacts.model_dir import MANIFEST, MODEL
from training.artifacts.predict_listener import MAX_MODELS
from worker.config.settings import child_environment
from worker.jobs.local.predictor import Predictor
from worker.web.files.artifact_files import DiskFiles
from worker.web.models import Prediction
from worker.web.routes.errors import ApiError, problems
from worker.web.routes.jobs import require_job
from worker.web.routes.model_files import ModelFiles

MAX_WAITING: Final = 8
"""Pictures that wait for an answer, or are answered."""
MAX_READING: Final = 4
"""Of these, pictures that are being received at once: each has up to 4 MiB."""
MAX_MODEL_BYTES: Final = 1 << 30
"""Of weights that are fetched from a store."""
TYPES: Final = ("image/png", "image/jpeg")
BODY: Final[dict[str, JsonValue]] = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in TYPES},
    }
}


class PredictRoutes:
    """The route /v1/jobs/{job_id}/predict. One process answers, which starts with the first picture."""

    def __init__(self, client: Client, files: ModelFiles) -> None:
        self._client = client
        self._files = files
        self._predictor = Predictor(child_environment())
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="predict")
        self._waiting = 0
        self._reading = asyncio.Semaphore(MAX_READING)
        self._copies: dict[str, TemporaryDirectory[str]] = {}
        """Version of a manifest in the store -> copy of its model, the oldest first."""

    def register(self, app: FastAPI) -> None:
        """Add the route to `app`."""
        app.post(
            "/v1/jobs/{job_id}/predict", tags=["files"], openapi_extra=BODY,
            responses=problems(403, 404, 408, 409, 413, 415, 422, 429, 501, 502),
        )(self.predict)  # fmt: skip

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """End the process at last."""
        yield
        await asyncio.get_running_loop().run_in_executor(self._thread, self._predictor.close)
        self._thread.shutdown()
        for copy in self._copies.values():
            copy.cleanup()

    async def predict(self, job_id: str, request: Request) -> Prediction:
        """Recognize what a PNG or JPEG shows, as `preflight predict` does."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in TYPES:  # which a page of another origin cannot send without a CORS preflight
            message = f"content-type is {ascii(kind)[:80]}, but must be image/png or image/jpeg"
            raise ApiError(415, "wrong_content_type", message)
        state = await run_in_threadpool(require_job, self._client, job_id)
        if self._waiting >= MAX_WAITING:
            raise ApiError(429, "too_busy", f"{MAX_WAITING} pictures wait for an answer already; ask again later")
        self._waiting += 1  # a place before the body, of which each has up to 4 MiB
        try:
            async with self._reading:
                picture = await request.body()
            return await self._answer(state, picture)
        except ClientDisconnect as error:
            raise ApiError(400, "incomplete", "the picture did not come whole; send it again") from error
        finally:
            self._waiting -= 1

    async def _answer(self, state: JobState, picture: bytes) -> Prediction:
        model = await self._model(state)
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._predictor.predict, model, picture
            )
        except InvalidConfig:
            raise
        except PreflightError as error:
            raise ApiError(501 if isinstance(error, MissingPackage) else 503, error.reason, error.message) from error
        return Prediction(
            label=found.label, name=found.name, confidence=found.confidence, classes=tuple(found.classes),
            probabilities=tuple(found.probabilities), uncertain=found.uncertain, reading=found.reading,
        )  # fmt: skip

    async def _model(self, state: JobState) -> Path:
        """Return the directory of a job's model: on this disk, or a copy; raises `ApiError` where there is none."""
        manifest = await self._files.open(state, MANIFEST)
        manifest.content.close()
        for source in self._files.sources:
            if isinstance(source, DiskFiles) and (source.root / state.job_id / MANIFEST).is_file():
                return source.root / state.job_id
        version = manifest.version.strip('"')
        if version not in self._copies:
            copy = TemporaryDirectory(prefix="preflight-")  # removed once it is forgotten
            for name in (MODEL, MANIFEST):
                await self._fetch(state, name, Path(copy.name) / name)
            self._copies[version] = copy
            while len(self._copies) > MAX_MODELS:
                self._copies.pop(next(iter(self._copies))).cleanup()
        return Path(self._copies[version].name)

    async def _fetch(self, state: JobState, name: str, target: Path) -> None:
        file = await self._files.open(state, name)
        with file.content, target.open("wb") as copy:
            if file.size > MAX_MODEL_BYTES:
                message = f"{name} has {file.size} bytes, but may have {MAX_MODEL_BYTES}; use `preflight predict`"
                raise ApiError(413, "too_large", message)
            await self._files.read(lambda: shutil.copyfileobj(file.content, copy, 1 << 20))
