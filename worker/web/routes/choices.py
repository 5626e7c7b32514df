"""What a form offers, and what a job would do: nothing is enqueued."""

from typing import Annotated

from fastapi import FastAPI, Query, Request
from redis import Redis

from preflight import Client
from preflight.contract.recipes import require_network
from preflight.errors import ArtifactError, InvalidConfig
from preflight.wire import Label, TrainJob, is_job_id, read_job
from worker.config.settings import Settings
from worker.models.store import ModelStore
from worker.web.listing.choices import (
    Choices,
    Fleet,
    Forecast,
    as_trained,
    choices,
    forecast,
    read_fleet,
    require_runnable,
)
from worker.web.listing.indexer import Indexer
from worker.web.listing.overview import read_overview
from worker.web.routes.errors import BODY_ERRORS, problems, read_json, request_body
from worker.web.routes.reads import Slots, TtlCache

THREADS = 2
MAX_WAITING = 64


class ChoiceRoutes:
    """The routes /v1/choices and /v1/check."""

    def __init__(
        self, client: Client, redis: Redis, indexer: Indexer, store: ModelStore, settings: Settings
    ) -> None:  # fmt: skip
        self._client = client
        self._store = store
        self._redis = redis
        self._indexer = indexer
        self._settings = settings
        self._fleets = TtlCache(self._read_fleet)
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
            return choices(self._fleets.get(()), self._indexer.table, dataset)

        return await self._slots.run(read)

    async def check(self, request: Request) -> Forecast:
        """Say what a job would do, or why it is refused: by the contract, or by every worker there is."""
        job = read_job(await read_json(request))
        return await self._slots.run(lambda: self._check(job))

    def _check(self, job: TrainJob) -> Forecast:
        fleet = self._fleets.get(())
        job = as_trained(job, fleet)
        require_runnable(job, fleet, self._settings, self._settings.job_timeout)
        if job.init_from is not None:
            self._require_same_network(job.init_from, job.spec().model)
        self._indexer.refresh()
        overview = read_overview(self._redis, self._settings.queue)
        return forecast(job, fleet, self._indexer.table, overview)

    def _require_same_network(self, reference: str, ours: str) -> None:
        """Raise `InvalidConfig` for a model of another network, as far as it is known here: the worker decides."""
        try:
            theirs: str | None = self._store.find(reference).promotion.model
        except (InvalidConfig, ArtifactError):
            state = self._client.status(reference) if is_job_id(reference) else None
            theirs = None if state is None else state.model
        if theirs is not None:
            require_network(reference, theirs, ours)

    def _read_fleet(self, _: tuple[()]) -> Fleet:
        return read_fleet(self._redis, self._settings.queue)
