"""Predictions by alias: which model answers, how many requests may wait, and what is counted."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final

from starlette.concurrency import run_in_threadpool

from preflight.errors import ArtifactError, PreflightError
from training.artifacts.predict_server import Asked
from worker.config.settings import child_environment
from worker.models.records import UnknownAlias
from worker.models.store import ModelStore
from worker.web.auth import MAX_PREDICT_BYTES, App, Receive, Scope, Send, read_body, refuse
from worker.web.predicting.bodies import read_pictures
from worker.web.predicting.metrics import PredictMetrics
from worker.web.predicting.process import Answer, PredictProcess
from worker.web.routes.errors import ApiError, as_api_error

MAX_WAITING: Final = 256
"""Requests that are received or wait for an answer; beyond, they are refused."""
MAX_WAITING_BYTES: Final = 16 << 20
"""Most bytes of the bodies of these requests."""
RETRY_AFTER: Final = 1
"""Seconds in `retry-after`, where too many requests wait."""
FRESH_SECONDS: Final = 0.2
"""Seconds for which an alias is not read again."""
STALE_SECONDS: Final = 1.0
"""Seconds for which requests use the former model while the alias is read again."""
READING: Final = re.compile(rb"(?:^|&)reading=(?:true|1|yes|on)(?:&|$)", re.IGNORECASE)
"""In the query of a request that wants what the network saw of each picture."""
PATH: Final = re.compile(r"/v1/models/([^/]{1,200})/predict")


class Predictions:
    """Answers requests for predictions, by one process."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self.process = PredictProcess(child_environment())
        self.metrics = PredictMetrics()
        self._aliases: dict[str, _Current] = {}
        self.waiting = 0
        """Requests that wait for an answer."""
        self.bytes = 0
        """Bytes of bodies that were received."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """End the process when the application ends."""
        yield
        await self.process.close()

    @contextmanager
    def place(self) -> Iterator["Place"]:
        """Hold a place for one request."""
        place = Place(self)
        try:
            yield place
        finally:
            self.waiting -= place.waits
            self.bytes -= place.bytes

    async def ask(self, asked: Asked, pictures: Sequence[bytes], alias: str) -> Answer:
        """Return the answer of a model; raises `PreflightError` where it has none."""
        answer = await self.process.ask(asked, pictures)
        self.metrics.count_predictions(alias, answer.summary["batch"], answer.summary["classes"])
        return answer

    async def model(self, alias: str) -> Asked:
        """Return the model that an alias points to; raises `PreflightError`."""
        current = self._aliases.get(alias)
        if current is None:
            current = _Current(lambda: self._resolve(alias))
        try:
            asked = await current.get()
        except UnknownAlias:
            self._aliases.pop(alias, None)
            raise
        self._aliases[alias] = current
        return asked

    def forget(self, alias: str) -> None:
        """Read an alias again at its next request: it was changed."""
        self._aliases.pop(alias, None)

    def exposition(self) -> bytes:
        """Return the metrics as text."""
        return self.metrics.exposition(self.process.starts, self.waiting)

    def knows(self, alias: str) -> bool:
        """Whether a request has found a model of this name: one that was made up is no label of a metric."""
        return alias in self._aliases

    def _resolve(self, alias: str) -> Asked:
        model = self._store.find(alias)
        return Asked(
            model=str(model.directory), version=model.promotion.key, sha256=model.sha256,
            files=tuple(model.promotion.files.items()),
        )  # fmt: skip

    async def answer(self, alias: str, content_type: str, body: bytes, *, reading: bool) -> bytes:
        """Return the JSON that answers a request; raises `ApiError` and `PreflightError`."""
        pictures, is_single = read_pictures(content_type, body)
        asked = await self.model(alias)
        answer = await self.ask(replace(asked, reading=True) if reading else asked, pictures, alias)
        if not is_single:
            return b'{"predictions":[' + answer.body + b"]}"
        if not answer.summary["classes"][0]:
            raise ApiError(422, "invalid_config", _message(answer.body), "image")
        return answer.body


class Place:
    """What one request holds: the received bytes of its body, and once it is whole, a place among those that wait.

    A client that hangs holds no more than it has sent.
    """

    def __init__(self, predictions: Predictions) -> None:
        self._predictions = predictions
        self.bytes = 0
        self.waits = False

    def receive(self, size: int) -> None:
        """Note that so many bytes have come; raises `ApiError` where all requests have too many."""
        if self._predictions.bytes + size > MAX_WAITING_BYTES:
            raise self._busy()
        self._predictions.bytes += size
        self.bytes += size

    def wait(self) -> None:
        """Note that the body has come whole; raises `ApiError` where too many requests wait."""
        if self._predictions.waiting >= MAX_WAITING:
            raise self._busy()
        self._predictions.waiting += 1
        self.waits = True

    def _busy(self) -> ApiError:
        return ApiError(
            429, "too_busy",
            f"{self._predictions.waiting} requests wait for an answer, and with those that are received they have "
            f"{self._predictions.bytes >> 20} MiB; {MAX_WAITING} with {MAX_WAITING_BYTES >> 20} MiB may; ask again "
            f"after {RETRY_AFTER} s",
        )  # fmt: skip


class _Current:
    """The model of an alias; read again after `FRESH_SECONDS`, while requests use the former one."""

    def __init__(self, read: Callable[[], Asked]) -> None:
        self._read = read
        self._asked: Asked | None = None
        self._at = 0.0
        self._reading: asyncio.Task[Asked] | None = None

    async def get(self) -> Asked:
        """Return the model; raises what reading it raises."""
        age = time.monotonic() - self._at
        if age < FRESH_SECONDS and self._asked is not None:
            return self._asked
        if self._reading is None:
            self._reading = asyncio.create_task(run_in_threadpool(self._read))
        elif self._asked is not None and age < STALE_SECONDS and not self._reading.done():
            return self._asked
        reading = self._reading
        try:
            asked = await asyncio.shield(reading)
        finally:
            if reading.done():
                self._reading = None
        self._asked, self._at = asked, time.monotonic()
        return asked


def _message(body: bytes) -> str:
    """Return why a picture has no answer."""
    return str(json.loads(body)["error"]["message"])


class PredictMiddleware:
    """ASGI middleware that answers requests for predictions; the routes of the application get all others.

    A request costs as much here as the network takes; the application's routing, its middleware and the validation of
    parameters would cost that once more.
    """

    def __init__(self, app: App, predictions: Predictions) -> None:
        self._app = app
        self._predictions = predictions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or forward it."""
        found = PATH.fullmatch(str(scope["path"])) if scope.get("method") == "POST" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        began, alias = time.monotonic(), found[1]
        try:
            body = await self._answer(alias, scope, receive)
        except (ApiError, PreflightError) as failure:
            # Its frames hold the body, and one of asyncio's the failure: a cycle, which is collected much later.
            failure.__traceback__ = None
            error = failure if isinstance(failure, ApiError) else as_api_error(failure)
            problem = error.problem
            known = alias if self._predictions.knows(alias) or problem.reason == ArtifactError.reason else ""
            self._predictions.metrics.count_request(known, error.status, time.monotonic() - began)
            more = ((b"retry-after", str(RETRY_AFTER).encode()),) if error.status in (429, 503) else ()
            await refuse(send, error.status, problem.reason, problem.message, field=problem.field, headers=more)
            return
        if body is None:  # the client has left
            return
        self._predictions.metrics.count_request(alias, 200, time.monotonic() - began)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, alias: str, scope: Scope, receive: Receive) -> bytes | None:
        content_type, headers = "", scope["headers"]
        for name, value in headers if isinstance(headers, list) else ():
            if name == b"content-type":
                content_type = value.decode("latin-1")
        with self._predictions.place() as place:
            body = await read_body(receive, MAX_PREDICT_BYTES, place.receive)
            if body is None:
                return None
            if len(body) > MAX_PREDICT_BYTES:
                raise ApiError(413, "too_large", f"the body is larger than {MAX_PREDICT_BYTES} bytes; shorten it")
            place.wait()
            query = scope.get("query_string")
            reading = isinstance(query, bytes) and READING.search(query) is not None
            return await self._predictions.answer(alias, content_type, body, reading=reading)
