"""Whether a job can run: what the workers of the queue have and take, asked before a job is enqueued.

The form's check and the route that enqueues ask the same: what every worker would refuse is not accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request
from redis import Redis

from preflight import Client
from preflight.client.catalog import Catalog, Offered, read_catalog
from preflight.client.datasets import require_known
from preflight.client.delete import require_not_deleted
from preflight.contract.recipes import require_image_size, require_network
from preflight.contract.registry import nearest
from preflight.errors import ArtifactError, InvalidConfig
from preflight.redis import keys
from preflight.redis.untrusted.values import MAX_NUMBER, Refused, as_json
from preflight.wire import Label, TrainJob, is_job_id, read_job
from training.catalog.names import known_datasets
from training.data.augmentation.suitability import require_suitable
from training.data.dataset_info import DatasetInfo
from training.data.split import split
from worker.admission.limits import (
    LIMITS,
    MAX_LIMITS_BYTES,
    default_batch_of,
    limited_by,
    require_samples_within_limit,
    require_within_limits,
)
from worker.config.settings import Settings
from worker.models.store import ModelStore
from worker.web.listing.choices import Choices, Forecast, choices, forecast
from worker.web.listing.indexer import Indexer
from worker.web.listing.overview import read_overview, read_workers_field
from worker.web.routes.errors import BODY_ERRORS, problems, read_json, request_body
from worker.web.routes.reads import Slots, TtlCache

THREADS: Final = 2
MAX_WAITING: Final = 64
ANY: Final = ()
"""The only question to the cache of fleets."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers of a queue: what they have and take."""

    catalog: Catalog
    limits: Sequence[dict[str, float]]
    """Limits of each worker that has published them."""


class JobCheck:
    """Refuses a job that every worker would refuse, as far as it is known here; the worker that takes it decides."""

    def __init__(self, client: Client, redis: Redis, store: ModelStore, settings: Settings) -> None:
        self._client = client
        self._redis = redis
        self._store = store
        self._settings = settings
        self._fleets = TtlCache(self._read_fleet)

    @property
    def timeout(self) -> int:
        """Longest run of a job that this service enqueues, in seconds."""
        return self._settings.job_timeout

    def fleet(self) -> Fleet:
        """Return what the workers say; raises `redis.exceptions.RedisError`."""
        return self._fleets.get(ANY)

    def require_runnable(self, job: TrainJob) -> TrainJob:
        """Return the job with the batch that a worker takes for its data set, where it names none.

        Raises:
            InvalidConfig: the id was deleted; the data set, the network or the limits do not allow the job.
            redis.exceptions.RedisError: Redis did not answer.
        """
        fleet = self.fleet()
        if job.job_id is not None:
            require_not_deleted(self._redis, job.job_id)
        self._require_dataset(job.dataset, fleet)
        info = _info(job.dataset, fleet.catalog.datasets.get(job.dataset))
        job = job.settled(job.dataset, default_batch_of(job, info))
        self._require_network(job, fleet)
        if info is not None:
            spec = job.spec()
            require_image_size(spec.model, info.shape)
            require_suitable(spec.augmentation, info)
            split(spec, info)
        self._require_within_limits(job, info, fleet)
        return job

    def _require_dataset(self, name: str, fleet: Fleet) -> None:
        published = frozenset(fleet.catalog.datasets)
        if not published or self._settings.dataset_url is not None:  # the worker decides, or fetches it
            return
        try:
            require_known(name, published)
        except InvalidConfig:
            if name not in known_datasets(self._settings.data_dir):  # just imported: workers say so within 20 s
                raise

    def _require_network(self, job: TrainJob, fleet: Fleet) -> None:
        model, known = job.spec().model, fleet.catalog.models
        if job.recipe is None and known and model not in known:
            message = f"model {model!r} is not known{nearest(model, [*known])}; the workers have {', '.join(known)}"
            raise InvalidConfig(message, field="model")
        if job.init_from is not None:
            theirs = self._network_of(job.init_from)
            if theirs is not None:
                require_network(job.init_from, theirs, model)

    def _network_of(self, reference: str) -> str | None:
        """Return the network of a model that a job starts from; None where it is not known here."""
        try:
            return self._store.find(reference).promotion.model
        except (InvalidConfig, ArtifactError):
            state = self._client.status(reference) if is_job_id(reference) else None
            return None if state is None else state.model

    def _require_within_limits(self, job: TrainJob, info: DatasetInfo | None, fleet: Fleet) -> None:
        refusals: list[InvalidConfig] = []
        for limits in fleet.limits:
            taking = limited_by(self._settings, limits)
            try:
                require_within_limits(job, self.timeout, taking)
                if info is not None:
                    require_samples_within_limit(job.spec(), info.train_count, taking)
            except InvalidConfig as error:
                refusals.append(error)
        if refusals and len(refusals) == len(fleet.limits):
            raise refusals[0]

    def _read_fleet(self, _: tuple[()]) -> Fleet:
        queue = self._settings.queue
        limits = map(_limits, read_workers_field(self._redis, queue, keys.LIMITS))
        return Fleet(read_catalog(self._redis, queue), [found for found in limits if found is not None])


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


def _info(name: str, said: Offered | None) -> DatasetInfo | None:
    """Return a data set's description as far as refusals need it; None where no worker has said it."""
    if said is None or said.train is None or said.test is None or said.classes is None or said.shape is None:
        return None
    return DatasetInfo(
        name=name, path=Path(), shape=said.shape, classes=said.classes, train_count=said.train, test_count=said.test,
        mean=0.0, std=0.0, sources=(), validation_count=said.validation,
    )  # fmt: skip


def _limits(said: bytes) -> dict[str, float] | None:
    """Return the limits that a worker published; None where they are invalid."""
    try:
        found = as_json(said.decode(errors="replace"), MAX_LIMITS_BYTES)
    except Refused:
        return None
    if not isinstance(found, dict):
        return None
    return {
        name: value for name in LIMITS
        if isinstance(value := found.get(name), int | float) and 0 <= value <= MAX_NUMBER
    }  # fmt: skip
