"""Imports over HTTP: how far each is, and its cancellation."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from redis.exceptions import RedisError
from starlette.concurrency import run_in_threadpool

from worker.imports.records import Imports, ImportState
from worker.web.datasets.uploading import Uploader
from worker.web.routes.errors import BODY_ERRORS, EMPTY, ApiError, if_writable, problems, request_body, require_empty
from worker.web.routes.events import EVENT_STREAM, UNBUFFERED

LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at an import that is followed."""
KEEP_ALIVE: Final = 10.0
MAX_FOLLOWED: Final = 64
EVENTS: Final[dict[int | str, dict[str, object]]] = {
    200: {
        "description": "server-sent events: the data of each `import` is an `ImportState`; after the last comes `end`",
        "content": {EVENT_STREAM: {"schema": {"$ref": "#/components/schemas/ServerSentEvent"}}},
    }
}


class ImportRoutes:
    """Routes under /v1/imports."""

    def __init__(
        self, imports: Imports, uploader: Uploader, is_closing: Callable[[], bool], *, read_only: bool
    ) -> None:
        self._imports, self._uploader, self._is_closing = imports, uploader, is_closing
        self._read_only = read_only
        self._followed = 0

    def register(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        path = "/v1/imports/{import_id}"
        app.get(path, tags=["datasets"], responses=problems(404))(self.import_)
        app.get(
            f"{path}/events", tags=["datasets"], response_class=StreamingResponse,
            responses={**problems(404, 429), **EVENTS},
        )(self.import_events)  # fmt: skip
        app.post(
            f"{path}/cancel", tags=["datasets"], dependencies=if_writable(read_only=self._read_only),
            responses=problems(*BODY_ERRORS, 403, 404, 409), openapi_extra=request_body(EMPTY),
        )(self.cancel_import)  # fmt: skip

    async def import_(self, import_id: str) -> ImportState:
        """Return how far an import is."""
        return await run_in_threadpool(self._find, import_id)

    async def import_events(self, import_id: str) -> Response:
        """Follow an import until it has ended: its state, whenever that changes."""
        await run_in_threadpool(self._find, import_id)
        if self._followed >= MAX_FOLLOWED:
            raise ApiError(429, "too_busy", f"{MAX_FOLLOWED} imports are followed already; ask again later")
        return StreamingResponse(self._stream(import_id), media_type=EVENT_STREAM, headers=UNBUFFERED)

    async def cancel_import(self, import_id: str, request: Request) -> ImportState:
        """Cancel an import that waits or runs."""
        await require_empty(request, "cancellation")
        return await run_in_threadpool(self._cancel, import_id)

    async def _stream(self, import_id: str) -> AsyncIterator[bytes]:
        yield b": preflight\n\n"
        self._followed += 1
        seq, quiet = 0, 0.0
        try:
            while not self._is_closing():
                state = await run_in_threadpool(self._imports.find, import_id)
                if state is None:
                    break
                if state.seq != seq:
                    seq, quiet = state.seq, 0.0
                    yield f"id: {seq}\nevent: import\ndata: {state.model_dump_json()}\n\n".encode()
                if state.has_ended:
                    yield b"event: end\ndata: {}\n\n"
                    break
                await asyncio.sleep(LOOK_SECONDS)
                quiet += LOOK_SECONDS
                if quiet >= KEEP_ALIVE:
                    quiet = 0.0
                    yield b": keep-alive\n\n"
        except RedisError:
            return  # without `end`, so that the client asks again
        finally:
            self._followed -= 1

    def _find(self, import_id: str) -> ImportState:
        found = self._imports.find(import_id)
        if found is None:
            raise ApiError(404, "unknown_import", f"there is no import {ascii(import_id)[1:-1][:40]}", "import_id")
        return found

    def _cancel(self, import_id: str) -> ImportState:
        state = self._find(import_id)
        if state.has_ended:
            raise ApiError(409, "ended", f"the import has ended ({state.status}); nothing is left to cancel")
        self._imports.ask_to_cancel(import_id)
        if self._imports.is_held(import_id):
            return state  # the worker that runs it sees the request within a second
        ended = {"status": "cancelled", "stage": "cancelled", "message": "cancelled before it began"}
        state = self._imports.end(state.model_copy(update=ended))  # one that begins just now sees the request, too
        self._uploader.remove(state.stored)
        return state
