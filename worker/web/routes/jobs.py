"""Jobs: list and show; `control` has what changes one."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

from fastapi import FastAPI, Query

from preflight import Client
from preflight.client.results import DEFAULT_LIMIT
from preflight.errors import InvalidConfig
from preflight.wire import JobState, Status, is_job_id, read_job
from preflight.wire.configuration import ConfigField, configuration
from worker.web.models import JobDetail
from worker.web.routes.errors import ApiError, problems
from worker.web.routes.reads import Slots, TtlCache

MAX_JOBS: Final = 1000
"""Jobs in one response."""
LIST_THREADS: Final = 2
"""Lists that are read at once: each may hold some ten megabytes of what Redis holds."""
MAX_WAITING: Final = 64


class JobRoutes:
    """Routes under /v1/jobs that change nothing."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lists = TtlCache(self._list)
        self._slots = Slots(LIST_THREADS, MAX_WAITING)

    def register(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        app.get("/v1/jobs", response_model_exclude_none=True, tags=["jobs"], responses=problems(422, 429))(self.jobs)
        app.get("/v1/jobs/{job_id}", response_model_exclude_none=True, tags=["jobs"], responses=problems(404))(self.job)
        app.get("/v1/jobs/{job_id}/request", tags=["jobs"], responses=problems(404))(self.request)

    async def jobs(
        self,
        status: Annotated[list[Status] | None, Query(description="only these")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_JOBS)] = DEFAULT_LIMIT,
    ) -> list[JobState]:
        """List jobs: running ones, then the others, newest first."""
        return await self._slots.run(partial(self._lists.get, (frozenset(status or ()), limit)))

    def job(self, job_id: str) -> JobDetail:
        """Return the state of a job, its place in the queue, and its result once it is finished."""
        state = require_job(self._client, job_id)
        result = self._client.result(state.job_id) if state.status == "finished" else None
        position = self._client.position(job_id) if state.status == "queued" else None
        notes, asked = self._client.notes(state.job_id), self._client.deletion(state.job_id)
        return JobDetail(
            **state.model_dump(exclude_none=True), position=position, result=result, config=_configuration(state),
            note=notes.note or None, tags=notes.tags or None,
            deleting=True if asked is not None and asked.refused is None else None,
            kept_because=None if asked is None else asked.refused,
        )  # fmt: skip

    def request(self, job_id: str) -> Mapping[str, object]:
        """Return the request of a job as it was enqueued, to run it again with changes."""
        state = require_job(self._client, job_id)
        found = self._client.request(job_id)
        if found is None:
            message = f"the request of job {state.job_id!r} is not in Redis any more; enter it again"
            raise ApiError(404, "unknown_request", message)
        return found

    def _list(self, question: tuple[frozenset[Status], int]) -> list[JobState]:
        statuses, limit = question
        return self._client.jobs(limit=limit, statuses=statuses)


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
        gone = is_job_id(job_id) and client.deleted_at(job_id) is not None
        what = "was deleted" if gone else "is not known"
        message = f"job {ascii(job_id)[:80]} {what}; GET /v1/jobs lists those that are there"
        raise ApiError(404, "unknown_job", message)
    return state
