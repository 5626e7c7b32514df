"""Predictions: what a finished model sees in a picture."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fastapi import FastAPI, Request
from pydantic import JsonValue
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from preflight import Client
from preflight.wire import JobState
from training.artifacts.model_dir import MANIFEST, MODEL, manifest_in
from training.artifacts.predict_server import MAX_MODELS, Asked
from worker.web.files.artifact_files import DiskFiles
from worker.web.models import Prediction
from worker.web.predicting.service import Predictions
from worker.web.routes.errors import ApiError, problems
from worker.web.routes.files import ModelFiles
from worker.web.routes.jobs import require_job

MAX_MODEL_BYTES: Final = 1 << 30
"""Most bytes of weights that are fetched from a store."""
TYPES: Final = ("image/png", "image/jpeg")
BODY: Final[dict[str, JsonValue]] = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in TYPES},
    }
}


class PredictRoutes:
    """The route /v1/jobs/{job_id}/predict."""

    def __init__(self, client: Client, models: "JobModels", predictions: Predictions) -> None:
        self._client = client
        self._models = models
        self._predictions = predictions

    def register(self, app: FastAPI) -> None:
        """Add the route to `app`."""
        app.post(
            "/v1/jobs/{job_id}/predict", tags=["files"], openapi_extra=BODY,
            responses=problems(403, 404, 408, 409, 413, 415, 422, 429, 501, 502),
        )(self.predict)  # fmt: skip

    async def predict(self, job_id: str, request: Request) -> Prediction:
        """Recognize what a PNG or JPEG shows, as `preflight predict` does."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in TYPES:  # which a page of another origin cannot send without a CORS preflight
            message = f"content-type is {ascii(kind)[:80]}, but must be image/png or image/jpeg"
            raise ApiError(415, "wrong_content_type", message)
        state = await run_in_threadpool(require_job, self._client, job_id)
        with self._predictions.place() as place:
            picture = bytearray()
            try:
                async for chunk in request.stream():
                    place.receive(len(chunk))
                    picture += chunk
            except ClientDisconnect as error:
                raise ApiError(400, "incomplete", "the picture did not come whole; send it again") from error
            place.wait()
            async with self._models.directory(state) as directory:
                asked = await run_in_threadpool(_asked, directory)
                answer = await self._predictions.ask(asked, [bytes(picture)], "")
        found = json.loads(answer.body)
        if "error" in found:
            raise ApiError(422, found["error"]["reason"], found["error"]["message"], "image")
        names = tuple(found["probabilities"])
        return Prediction(
            label=names.index(found["class"]), name=found["class"], confidence=found["probability"], classes=names,
            probabilities=tuple(found["probabilities"].values()), uncertain=found["uncertain"],
            reading=found["reading"],
        )  # fmt: skip


@dataclass(slots=True)
class _Copy:
    """A copy of a model of a store."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the model is fetched, so that requests which come together fetch it once."""
    folder: TemporaryDirectory[str] | None = None
    """None: it is not fetched yet."""
    users: int = 0
    """Requests that use the copy; it is not removed meanwhile."""


class JobModels:
    """Directories of the models of jobs: on this disk, or copies of those in a store."""

    def __init__(self, files: ModelFiles) -> None:
        self._files = files
        self._copies: dict[str, _Copy] = {}
        """Version of a manifest in the store -> copy of its model, the oldest first."""

    def close(self) -> None:
        """Remove the copies."""
        for copy in self._copies.values():
            if copy.folder is not None:
                copy.folder.cleanup()

    @asynccontextmanager
    async def directory(self, state: JobState) -> AsyncIterator[Path]:
        """Hold the directory of a job's model: on this disk, or a copy; raises `ApiError` where there is none."""
        manifest = await self._files.open(state, MANIFEST)
        manifest.content.close()
        for source in self._files.sources:
            if isinstance(source, DiskFiles) and (source.root / state.job_id / MANIFEST).is_file():
                yield source.root / state.job_id
                return
        copy = self._copies.setdefault(manifest.version, _Copy())
        copy.users += 1
        try:
            async with copy.lock:
                if copy.folder is None:
                    copy.folder = await self._copied(state)
            yield Path(copy.folder.name)
        finally:
            copy.users -= 1
            self._forget()

    def _forget(self) -> None:
        """Remove copies that nobody uses: those that could not be fetched, and the oldest beyond `MAX_MODELS`."""
        for version, copy in [*self._copies.items()]:
            if not copy.users and (copy.folder is None or len(self._copies) > MAX_MODELS):
                del self._copies[version]
                if copy.folder is not None:
                    copy.folder.cleanup()

    async def _copied(self, state: JobState) -> TemporaryDirectory[str]:
        folder = TemporaryDirectory(prefix="preflight-")
        try:
            for name in (MODEL, MANIFEST):
                await self._fetch(state, name, Path(folder.name) / name)
        except BaseException:
            folder.cleanup()
            raise
        return folder

    async def _fetch(self, state: JobState, name: str, target: Path) -> None:
        file = await self._files.open(state, name)
        with file.content, target.open("wb") as copy:
            if file.size > MAX_MODEL_BYTES:
                message = f"{name} has {file.size} bytes, but may have {MAX_MODEL_BYTES}; use `preflight predict`"
                raise ApiError(413, "too_large", message)
            await self._files.read(lambda: shutil.copyfileobj(file.content, copy, 1 << 20))


def _asked(directory: Path) -> Asked:
    version = (directory / MANIFEST).stat().st_mtime_ns if (directory / MANIFEST).exists() else 0
    match manifest_in(directory):
        case {"sha256": {"model.safetensors": str(sha256)}}:
            return Asked(model=str(directory), version=str(version), sha256=sha256, reading=True)
    return Asked(model=str(directory), version=str(version), sha256="", reading=True)
