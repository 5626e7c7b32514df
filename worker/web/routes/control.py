"""Control: enqueue, retry and cancel jobs, unless the service is read-only."""

import json
from collections.abc import Sequence
from typing import Final

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import JsonValue, ValidationError
from starlette.concurrency import run_in_threadpool

from preflight import Client
from preflight.client.retry import CannotRetry
from preflight.errors import InvalidConfig
from preflight.wire import read_job
from preflight.wire.validation_errors import to_invalid_config
from worker.web.models import CancelJobs, CancelledJobs, Cancelling, Enqueued, Refused, Retried
from worker.web.routes.errors import BODY_ERRORS, ApiError, problems, read_json, request_body
from worker.web.routes.jobs import require_job

EMPTY: Final[dict[str, JsonValue]] = {"type": "object", "maxProperties": 0}


class ControlRoutes:
    """Routes under /v1/jobs that change jobs."""

    def __init__(self, client: Client, job_timeout: int, prefix: str, *, read_only: bool) -> None:
        """Enqueue with `client`; addresses of jobs begin with `prefix`, below which a proxy serves."""
        self._client = client
        self._job_timeout = job_timeout
        self._prefix = prefix
        self._read_only = read_only

    def register(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        exists = {"model": Enqueued, "description": "a job of this id was there already; nothing was enqueued"}
        writable = [Depends(self._require_writable)]
        app.post(
            "/v1/jobs", status_code=201, response_model=Enqueued, tags=["jobs"], dependencies=writable,
            responses={**problems(*BODY_ERRORS), 409: exists},
            openapi_extra=request_body({"$ref": "#/components/schemas/TrainJob"}),
        )(self.enqueue)  # fmt: skip
        app.post(
            "/v1/cancel", status_code=202, tags=["jobs"], dependencies=writable, responses=problems(*BODY_ERRORS),
            openapi_extra=request_body({"$ref": "#/components/schemas/CancelJobs"}),
        )(self.cancel_jobs)  # fmt: skip
        for action in (self.cancel, self.retry):
            app.post(
                f"/v1/jobs/{{job_id}}/{action.__name__}", status_code=202, tags=["jobs"], dependencies=writable,
                responses=problems(*BODY_ERRORS, 404, 409), openapi_extra=request_body(EMPTY),
            )(action)  # fmt: skip

    async def enqueue(self, request: Request) -> JSONResponse:
        """Put a job into the queue; its `job_id` is the idempotency key."""
        job = read_job(await read_json(request))
        result = await run_in_threadpool(self._client.enqueue, job, job_timeout=self._job_timeout)
        same = None if result.created else await run_in_threadpool(self._client.is_repeated, result.job_id, job)
        body = Enqueued(job_id=result.job_id, created=result.created, same_request=same)
        headers = {"location": f"{self._prefix}/v1/jobs/{result.job_id}"}
        return JSONResponse(body.model_dump(exclude_none=True), 201 if result.created else 409, headers)

    async def cancel(self, job_id: str, request: Request) -> Cancelling:
        """Cancel a job: at once in the queue, within a step when it runs. Its checkpoint is kept."""
        await _require_empty(request, "cancellation")
        return await run_in_threadpool(self._cancel, job_id)

    async def retry(self, job_id: str, request: Request) -> Retried:
        """Put a failed or cancelled job into the queue again; it resumes from its checkpoint, where there is one."""
        await _require_empty(request, "retry")
        return await run_in_threadpool(self._retry, job_id)

    async def cancel_jobs(self, request: Request) -> CancelledJobs:
        """Cancel several jobs; those that have ended, or are not known, are named in the answer."""
        try:
            job_ids = CancelJobs.model_validate_json(json.dumps(await read_json(request))).job_ids
        except ValidationError as error:
            raise to_invalid_config(error, CancelJobs.model_json_schema()) from error
        return await run_in_threadpool(self._cancel_jobs, job_ids)

    def _cancel_jobs(self, job_ids: Sequence[str]) -> CancelledJobs:
        cancelled: list[Cancelling] = []
        refused: list[Refused] = []
        for job_id in dict.fromkeys(job_ids):
            try:
                cancelled.append(self._cancel(job_id))
            except ApiError as error:
                refused.append(Refused(job_id=job_id, reason=error.problem.reason, message=error.problem.message))
        return CancelledJobs(cancelled=tuple(cancelled), refused=tuple(refused))

    def _cancel(self, job_id: str) -> Cancelling:
        state = require_job(self._client, job_id)
        if not self._client.cancel(job_id):
            message = f"job {job_id!r} is {state.status}; only a queued or running job can be cancelled"
            raise ApiError(409, "already_ended", message)
        after = self._client.status(job_id)
        return Cancelling(job_id=after.job_id, status=after.status)

    def _retry(self, job_id: str) -> Retried:
        require_job(self._client, job_id)
        try:
            return Retried(job_id=self._client.retry(job_id))
        except CannotRetry as error:
            raise ApiError(409, "not_retriable", error.message, error.field) from error

    async def _require_writable(self) -> None:
        if self._read_only:
            message = "this service only shows jobs (PREFLIGHT_WEB_READONLY is on); use another, or `preflight`"
            raise ApiError(403, "read_only", message)


async def _require_empty(request: Request, what: str) -> None:
    if await read_json(request) != {}:
        raise ApiError(422, InvalidConfig.reason, f"the body of a {what} must be {{}}; send that")
