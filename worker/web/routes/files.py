"""Files of a finished model: their list, and each file, read in separate threads with a time limit."""

from collections.abc import Callable
from typing import Annotated, Final, TypeVar

from anyio import CapacityLimiter, fail_after, to_thread
from fastapi import FastAPI, Header
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from preflight import Client
from preflight.config.secrets import redact_urls
from preflight.errors import PreflightError
from preflight.object_store import describe_error
from preflight.wire import JobState
from worker.config.settings import Settings
from worker.web.files.artifact_files import FILES, OpenFile, list_files, open_file, sources_of
from worker.web.files.file_response import Conditions, RangeNotSatisfiable, file_response
from worker.web.files.tickets import Tickets
from worker.web.models import JobFile, JobFiles
from worker.web.predicting.process import can_predict
from worker.web.routes.errors import ApiError, problems
from worker.web.routes.jobs import require_job

CONTENT: Final = {kind.partition(";")[0]: {"schema": {"type": "string", "format": "binary"}} for kind in FILES.values()}
FILE_RESPONSES: Final[dict[int | str, dict[str, object]]] = {
    200: {"description": "the file", "content": CONTENT},
    206: {"description": "the asked bytes of it", "content": CONTENT},
    304: {"description": "the client has this version"},
}
MAX_THREADS: Final = 16
"""Threads that read files, apart from those of other requests, as a store may be slow."""
TIMEOUT_SECONDS: Final = 20.0
"""Longest wait for a store, in seconds."""

T = TypeVar("T")


class ModelFiles:
    """The files of finished models, as far as this service reaches them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.sources = sources_of(settings)
        self.limiter = CapacityLimiter(MAX_THREADS)

    async def open(self, state: JobState, name: str) -> OpenFile:
        """Open a file of a job; raises `ApiError` where there is none, or it cannot be read."""
        try:
            return await self.read(lambda: open_file(self.sources, state.job_id, name))
        except FileNotFoundError as error:
            status = 404 if state.status == "finished" else 409
            raise ApiError(status, "file_unavailable", f"{name} is not there: {self.where(state)}") from error

    async def read(self, action: Callable[[], T]) -> T:
        """Return the result of `action`, which reads disk or store; raises `ApiError` where a store fails."""
        try:
            with fail_after(TIMEOUT_SECONDS):
                return await to_thread.run_sync(action, abandon_on_cancel=True, limiter=self.limiter)
        except FileNotFoundError:
            raise
        except Exception as error:  # each store has its own exceptions
            url = redact_urls(self._settings.artifact_url or str(self._settings.artifact_dir))
            known = isinstance(error, PreflightError)
            why = str(error) if known else f"{url} cannot be read ({describe_error(error)}); try again later"
            raise ApiError(502, "artifact_unreachable", self._settings.redact(why)) from error

    def where(self, state: JobState) -> str:
        """Return a sentence that says where the files of a job lie, or why there are none."""
        if state.status != "finished":
            return f"job {state.job_id!r} is {state.status}; a model has files once its job has finished"
        looked = f"this service found no file in {self._settings.artifact_dir / state.job_id}"
        there = f"{state.artifact} on worker {state.worker}" if state.worker else state.artifact
        places = " and ".join(place for place in (there, state.artifact_url) if place)
        share = "share PREFLIGHT_ARTIFACT_DIR or PREFLIGHT_ARTIFACT_URL with the worker"
        return f"{looked}; its job wrote them to {places or 'an unknown place'}: {share}"


class FileRoutes:
    """Routes under /v1/jobs/{job_id}/files."""

    def __init__(self, client: Client, files: ModelFiles, tickets: Tickets) -> None:
        self._client = client
        self._files = files
        self._tickets = tickets

    def register(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        app.get(
            "/v1/jobs/{job_id}/files", response_model_exclude_none=True, tags=["files"], responses=problems(404, 502)
        )(self.files)
        app.get(
            "/v1/jobs/{job_id}/files/{name}", tags=["files"], response_class=Response,
            responses={**problems(404, 409, 416, 502), **FILE_RESPONSES},
        )(self.file)  # fmt: skip

    async def files(self, job_id: str) -> JobFiles:
        """List the files of a finished model; where the service reaches none, `message` says where they lie."""
        state = await run_in_threadpool(require_job, self._client, job_id)
        source, found = await self._files.read(lambda: list_files(self._files.sources, state.job_id))
        if source is None:
            return JobFiles(job_id=state.job_id, message=self._files.where(state))
        path = f"/v1/jobs/{state.job_id}/files"
        files = [JobFile(name=name, bytes=size, href=self._tickets.address(f"{path}/{name}")) for name, size in found]
        return JobFiles(job_id=state.job_id, source=source, files=tuple(files), predicts=can_predict())

    async def file(
        self,
        job_id: str,
        name: str,
        range: Annotated[str | None, Header(description="one range of bytes")] = None,
        if_range: Annotated[str | None, Header(description="send the range only of this version")] = None,
        if_none_match: Annotated[str | None, Header(description="send it only where it has another version")] = None,
    ) -> Response:
        """Return a file of a finished model: one of those that `files` lists."""
        if name not in FILES:
            message = f"{ascii(name)[:80]} is no file of a model; ask for one of {', '.join(FILES)}"
            raise ApiError(404, "unknown_file", message)
        state = await run_in_threadpool(require_job, self._client, job_id)
        file = await self._files.open(state, name)
        asked = Conditions(range=range, if_range=if_range, if_none_match=if_none_match)
        try:
            return file_response(file, asked, self._files.limiter)
        except RangeNotSatisfiable as error:
            message = f"range is {ascii(range)[:80]}, but {name} has {file.size} bytes; begin before that"
            raise ApiError(416, "range_not_satisfiable", message, "range") from error
