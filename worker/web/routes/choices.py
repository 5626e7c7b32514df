"""Routes of what a form offers and of what a job would do: nothing is enqueued."""

from typing import Annotated, Final

from fastapi import FastAPI, Query, Request
from redis import Redis

from preflight.wire import Label, TrainJob, read_job
from worker.web.listing.choices import Choices, Forecast, choices, forecast
from worker.web.listing.indexer import Indexer
from worker.web.listing.overview import read_overview
from worker.web.routes.errors import BODY_ERRORS, problems, read_json, request_body
from worker.web.routes.reads import Slots
from worker.web.routes.runnable import JobCheck

THREADS: Final = 2
MAX_WAITING: Final = 64


class ChoiceRoutes:
    """The routes /v1/choices and /v1/check."""

    def __init__(self, check: JobCheck, redis: Redis, queue: str, indexer: Indexer) -> None:
        self._check = check
        self._redis = redis
        self._queue = queue
        self._indexer = indexer
        self._slots = Slots(THREADS, MAX_WAITING)

    def register(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        app.get("/v1/choices", tags=["jobs"], response_model_exclude_none=True, responses=problems(429))(self.choices)
        app.post(
            "/v1/check", tags=["jobs"], response_model_exclude_none=True, responses=problems(*BODY_ERRORS, 429),
            openapi_extra=request_body({"$ref": "#/components/schemas/TrainJob"}),
        )(self.check)  # fmt: skip

    async def choices(self, dataset: Annotated[Label, Query(description="for what recipes come to")] = "") -> Choices:
        """Return the data sets and models that the workers have, and the recipes."""

        def read() -> Choices:
            self._indexer.refresh()
            return choices(self._check.fleet().catalog, self._indexer.table, dataset)

        return await self._slots.run(read)

    async def check(self, request: Request) -> Forecast:
        """Say what a job would do, or why it is refused: by the contract, or by every worker there is."""
        job = read_job(await read_json(request))
        return await self._slots.run(lambda: self._forecast(job))

    def _forecast(self, job: TrainJob) -> Forecast:
        job = self._check.require_runnable(job)
        self._indexer.refresh()
        return forecast(job, self._check.fleet().catalog, self._indexer.table, read_overview(self._redis, self._queue))
