"""Jobs: enqueue, list, show, cancel."""

from functools import lru_cache
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from training.errors import InvalidConfig
from worker.client import Client
from worker.client.results import DEFAULT_LIMIT
from worker.web.models import Cancelling, Enqueued, JobDetail
from worker.web.routes.errors import BODY_ERRORS, ApiError, problems, read_json, request_body
from worker.web.routes.ttl_cache import TtlCache
from worker.wire import JobState, Status, is_job_id, read_job
from worker.wire.configuration import ConfigField, configuration

MAX_JOBS: Final = 1000
"""Jobs in one response."""
MAX_CACHED_LISTS: Final = 32


class JobRoutes:
    """Routes under /v1/jobs."""

    def __init__(self, client: Client, job_timeout: int) -> None:
        self._client = client
        self._job_timeout = job_timeout
        self._cached_list = lru_cache(maxsize=MAX_CACHED_LISTS)(self._create_cache)

    def register(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        exists = {"model": Enqueued, "description": "a job of this id was there already; nothing was enqueued"}
        app.post(
            "/v1/jobs", status_code=201, response_model=Enqueued, tags=["jobs"],
            responses={**problems(*BODY_ERRORS), 409: exists},
            openapi_extra=request_body({"$ref": "#/components/schemas/TrainJob"}),
        )(self.enqueue)  # fmt: skip
        app.get("/v1/jobs", response_model_exclude_none=True, tags=["jobs"], responses=problems(422))(self.jobs)
        app.get("/v1/jobs/{job_id}", response_model_exclude_none=True, tags=["jobs"], responses=problems(404))(self.job)
        app.post(
            "/v1/jobs/{job_id}/cancel", status_code=202, tags=["jobs"], responses=problems(*BODY_ERRORS, 404, 409),
            openapi_extra=request_body({"type": "object", "maxProperties": 0}),
        )(self.cancel)  # fmt: skip

    async def enqueue(self, request: Request) -> JSONResponse:
        """Put a job into the queue; its `job_id` is the idempotency key."""
        job = read_job(await read_json(request))
        result = await run_in_threadpool(self._client.enqueue, job, job_timeout=self._job_timeout)
        body = Enqueued(job_id=result.job_id, created=result.created)
        headers = {"location": f"/v1/jobs/{result.job_id}"}
        return JSONResponse(body.model_dump(), 201 if result.created else 409, headers)

    def jobs(
        self,
        status: Annotated[list[Status] | None, Query(description="only these")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_JOBS)] = DEFAULT_LIMIT,
    ) -> list[JobState]:
        """List jobs: running ones, then the others, newest first."""
        return self._cached_list(frozenset(status or ()), limit).get()

    def job(self, job_id: str) -> JobDetail:
        """Return the state of a job, and its result once it is finished."""
        state = require_job(self._client, job_id)
        result = self._client.result(state.job_id) if state.status == "finished" else None
        return JobDetail(**state.model_dump(exclude_none=True), result=result, config=_configuration(state))

    async def cancel(self, job_id: str, request: Request) -> Cancelling:
        """Cancel a job: at once in the queue, within a step when it runs. Its checkpoint is kept."""
        if await read_json(request) != {}:
            raise ApiError(422, InvalidConfig.reason, "the body of a cancellation must be {}; send that")
        return await run_in_threadpool(self._cancel, job_id)

    def _cancel(self, job_id: str) -> Cancelling:
        state = require_job(self._client, job_id)
        if not self._client.cancel(job_id):
            message = f"job {job_id!r} is {state.status}; only a queued or running job can be cancelled"
            raise ApiError(409, "already_ended", message)
        after = self._client.status(job_id)
        return Cancelling(job_id=after.job_id, status=after.status)

    def _create_cache(self, statuses: frozenset[Status], limit: int) -> TtlCache[list[JobState]]:
        return TtlCache(lambda: self._client.jobs(limit=limit, statuses=statuses))


def _configuration(state: JobState) -> tuple[ConfigField, ...] | None:
    """Return the settings of a job; None where its request is not known, or of another version."""
    try:
        return None if state.request is None else configuration(read_job(state.request))
    except InvalidConfig:
        return None


def require_job(client: Client, job_id: str) -> JobState:
    """Return the state of a job by its id or RQ's; raises `ApiError` for an unknown one."""
    state = client.status(job_id) if is_job_id(job_id) else None
    if state is None or state.status == "unknown":
        message = f"job {ascii(job_id)[:80]} is not known; GET /v1/jobs lists those that are"
        raise ApiError(404, "unknown_job", message)
    return state
