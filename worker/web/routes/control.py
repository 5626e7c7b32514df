"""Control: enqueue, retry and cancel jobs, unless the service is read-only."""

import json
from collections.abc import Callable, Collection, Sequence

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from preflight import Client
from preflight.client.delete import CannotDelete
from preflight.client.notes import Notes
from preflight.client.retry import CannotRetry
from preflight.errors import InvalidConfig
from preflight.wire import TrainJob, read_job
from preflight.wire.validation_errors import to_invalid_config
from worker.models.store import ModelStore
from worker.web.models import CancelJobs, CancelledJobs, Cancelling, ChangeNotes, Deleting, Enqueued, Refused, Retried
from worker.web.routes.errors import (
    BODY_ERRORS,
    EMPTY,
    ApiError,
    if_writable,
    problems,
    read_json,
    request_body,
    require_empty,
)
from worker.web.routes.jobs import require_job
from worker.web.routes.runnable import JobCheck


class ControlRoutes:
    """Routes under /v1/jobs that change jobs."""

    def __init__(
        self, client: Client, store: ModelStore, check: JobCheck, prefix: str, *, read_only: bool,
        changed: Callable[[Collection[str]], None],
    ) -> None:  # fmt: skip
        """Enqueue with `client` what `check` allows; addresses of jobs begin with `prefix`, below which a proxy serves.

        `changed` takes RQ's ids of jobs that the search is to read again.
        """
        self._client = client
        self._store = store
        self._changed = changed
        self._check = check
        self._prefix = prefix
        self._read_only = read_only

    def register(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        exists = {"model": Enqueued, "description": "a job of this id was there already; nothing was enqueued"}
        writable = if_writable(read_only=self._read_only)
        app.post(
            "/v1/jobs", status_code=201, response_model=Enqueued, tags=["jobs"], dependencies=writable,
            responses={**problems(*BODY_ERRORS), 409: exists},
            openapi_extra=request_body({"$ref": "#/components/schemas/TrainJob"}),
        )(self.enqueue)  # fmt: skip
        app.post(
            "/v1/cancel", status_code=202, tags=["jobs"], dependencies=writable, responses=problems(*BODY_ERRORS),
            openapi_extra=request_body({"$ref": "#/components/schemas/CancelJobs"}),
        )(self.cancel_jobs)  # fmt: skip
        app.delete(
            "/v1/jobs/{job_id}", status_code=202, tags=["jobs"], dependencies=writable,
            responses=problems(403, 404, 409, 422),
        )(self.delete)  # fmt: skip
        app.post(
            "/v1/jobs/{job_id}/notes", tags=["jobs"], dependencies=writable, responses=problems(*BODY_ERRORS, 404),
            openapi_extra=request_body({"$ref": "#/components/schemas/ChangeNotes"}),
        )(self.annotate)  # fmt: skip
        for action in (self.cancel, self.retry):
            app.post(
                f"/v1/jobs/{{job_id}}/{action.__name__}", status_code=202, tags=["jobs"], dependencies=writable,
                responses=problems(*BODY_ERRORS, 404, 409), openapi_extra=request_body(EMPTY),
            )(action)  # fmt: skip

    async def enqueue(self, request: Request) -> JSONResponse:
        """Put a job into the queue; its `job_id` is the idempotency key."""
        job = read_job(await read_json(request))
        body = await run_in_threadpool(self._enqueue, job)
        headers = {"location": f"{self._prefix}/v1/jobs/{body.job_id}"}
        return JSONResponse(body.model_dump(exclude_none=True), 201 if body.created else 409, headers)

    async def cancel(self, job_id: str, request: Request) -> Cancelling:
        """Cancel a job: at once in the queue, within a step when it runs. Its checkpoint is kept."""
        await require_empty(request, "cancellation")
        return await run_in_threadpool(self._cancel, job_id)

    async def retry(self, job_id: str, request: Request) -> Retried:
        """Put a failed or cancelled job into the queue again; it resumes from its checkpoint, where there is one."""
        await require_empty(request, "retry")
        return await run_in_threadpool(self._retry, job_id)

    async def annotate(self, job_id: str, request: Request) -> Notes:
        """Change a job's note or its tags; what is left out stays."""
        try:
            change = ChangeNotes.model_validate(await read_json(request))
        except ValidationError as error:
            raise to_invalid_config(error, ChangeNotes.model_json_schema()) from error
        return await run_in_threadpool(self._annotate, job_id, change)

    async def delete(self, job_id: str) -> Deleting:
        """Have a worker delete a job that has ended, with its model and checkpoints. Its id is not trained again."""
        return await run_in_threadpool(self._delete, job_id)

    async def cancel_jobs(self, request: Request) -> CancelledJobs:
        """Cancel several jobs; those that have ended, or are not known, are named in the answer."""
        try:
            job_ids = CancelJobs.model_validate_json(json.dumps(await read_json(request))).job_ids
        except ValidationError as error:
            raise to_invalid_config(error, CancelJobs.model_json_schema()) from error
        return await run_in_threadpool(self._cancel_jobs, job_ids)

    def _enqueue(self, job: TrainJob) -> Enqueued:
        try:
            self._check.require_runnable(job)
        except InvalidConfig:
            if job.job_id is None or self._client.status(job.job_id).status == "unknown":
                raise  # else it was accepted before: the answer says if this request repeats it
        result = self._client.enqueue(job, job_timeout=self._check.timeout)
        same = None if result.created else self._client.is_repeated(result.job_id, job)
        return Enqueued(job_id=result.job_id, created=result.created, same_request=same)

    def _delete(self, job_id: str) -> Deleting:
        state = require_job(self._client, job_id)
        users = self._store.naming(state.job_id)
        if users:
            message = f"the model of job {state.job_id!r} is in use as {', '.join(users)}; promote another one first"
            raise ApiError(409, "in_use", message)
        try:
            return Deleting(job_id=self._client.delete(job_id, by="http"))
        except CannotDelete as error:
            raise ApiError(409, "not_deletable", error.message, error.field) from error

    def _annotate(self, job_id: str, change: ChangeNotes) -> Notes:
        state = require_job(self._client, job_id)
        notes = self._client.annotate(state.job_id, note=change.note, tags=change.tags)
        self._changed([state.rq_id or state.job_id])
        return notes

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
