"""What a form can offer, and what a job that it would enqueue comes to: by its workers and the jobs before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, get_args

from redis import Redis

from preflight.client.catalog import Catalog, Offered, read_catalog
from preflight.client.datasets import require_known
from preflight.contract.image_sizes import require_image_size
from preflight.contract.recipes import REACHES, RECIPES, RecipeName
from preflight.contract.registry import nearest
from preflight.contract.spec import TrainSpec
from preflight.errors import InvalidConfig
from preflight.numbers import plural
from preflight.redis import keys
from preflight.redis.untrusted.values import MAX_NUMBER, Refused, as_json
from preflight.wire import Count, Label, Seconds, Share, TrainJob
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
from worker.web.listing.overview import Overview, read_workers_field
from worker.web.listing.table import Ended, JobTable
from worker.web.models import ApiModel

NEWEST: Final = 20
"""Finished jobs by which the next one is judged."""


class DatasetChoice(ApiModel):
    """A data set that a worker has."""

    name: Label
    version: Label | None = None
    """What the name stands for now: `photos@2`."""
    train: Count | None = None
    test: Count | None = None
    classes: Count | None = None
    shape: tuple[Count, Count, Count] | None = None
    """Channels, height and width of an image."""


class Expectation(ApiModel):
    """What jobs like this one came to here; null: none has finished."""

    seconds: Seconds | None = None
    """Median duration."""
    accuracy: Share | None = None
    """Median test accuracy."""
    jobs: Count = 0
    """How many there were."""


class RecipeChoice(ApiModel):
    """A recipe."""

    name: Label
    mnist: Share
    """Test accuracy on MNIST, as it was measured."""
    here: Expectation
    """On the data set that was asked for."""


class Choices(ApiModel):
    """What a job can name; nothing where no worker has said what it has."""

    datasets: tuple[DatasetChoice, ...]
    models: tuple[Label, ...]
    recipes: tuple[RecipeChoice, ...]


class Forecast(ApiModel):
    """What a job would do, were it enqueued now."""

    message: str
    """What is trained, when it starts, and how long it takes."""
    expectation: Expectation


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers of a queue: what they have and take."""

    catalog: Catalog
    limits: Sequence[dict[str, float]]
    """Of each worker that has said them."""


def read_fleet(redis: Redis, queue: str) -> Fleet:
    """Return what the workers say; raises `redis.exceptions.RedisError`."""
    limits = map(_limits, read_workers_field(redis, queue, keys.LIMITS))
    return Fleet(read_catalog(redis, queue), [found for found in limits if found is not None])


def choices(fleet: Fleet, table: JobTable, dataset: str) -> Choices:
    """Return what a form offers; recipes with what they came to on `dataset`."""
    return Choices(
        datasets=tuple(_choice(name, said) for name, said in fleet.catalog.datasets.items()),
        models=fleet.catalog.models,
        recipes=tuple(
            RecipeChoice(name=name, mnist=REACHES[name], here=_expect(_like(table, dataset, RECIPES[name], name)))
            for name in get_args(RecipeName)
        ),
    )


def as_trained(job: TrainJob, fleet: Fleet) -> TrainJob:
    """Return a job with the batch that a worker takes for its data set, where it names none."""
    info = _info(job.dataset, fleet.catalog.datasets.get(job.dataset))
    return job.settled(job.dataset, default_batch_of(job, info))


def require_runnable(job: TrainJob, fleet: Fleet, settings: Settings, timeout: int) -> None:
    """Raise `InvalidConfig` where every worker would refuse the job: by its data set, its network or their limits."""
    catalog = fleet.catalog
    if catalog.datasets:  # else the worker that takes it decides
        require_known(job.dataset, frozenset(catalog.datasets))
    spec = job.spec()
    if job.recipe is None and catalog.models and spec.model not in catalog.models:
        known = [*catalog.models]
        raise InvalidConfig(
            f"model {spec.model!r} is not known{nearest(spec.model, known)}; the workers have {', '.join(known)}",
            field="model",
        )
    info = _info(job.dataset, catalog.datasets.get(job.dataset))
    if info is not None:
        require_image_size(spec.model, info.shape)
        require_suitable(spec.augmentation, info)
        split(spec, info)
    refusals: list[InvalidConfig] = []
    for limits in fleet.limits:
        taking = limited_by(settings, limits)
        try:
            require_within_limits(job, timeout, taking)
            if info is not None:
                require_samples_within_limit(spec, info.train_count, taking)
        except InvalidConfig as error:
            refusals.append(error)
    if refusals and len(refusals) == len(fleet.limits):
        raise refusals[0]


def forecast(job: TrainJob, fleet: Fleet, table: JobTable, overview: Overview) -> Forecast:
    """Return what the job would do."""
    found = _expect(_like(table, job.dataset, job.spec(), job.recipe))
    what = f"the recipe {job.recipe}" if job.recipe else f"{job.spec().model} for {plural(job.spec().epochs, 'epoch')}"
    start = "" if job.init_from is None else f", from the weights of {job.init_from},"
    data = _words(job.dataset, fleet.catalog.datasets.get(job.dataset))
    return Forecast(message=f"Trains {what} on {data}{start}. {_start(overview)} {_duration(found)}", expectation=found)


def _words(name: str, said: Offered | None) -> str:
    if said is None or said.train is None or said.classes is None:
        return name
    shown = said.version or name
    return f"{shown} ({said.train:,} training images, {said.classes:,} classes)"


def _start(overview: Overview) -> str:
    idle = [worker for worker in overview.workers if worker.job_id is None and worker.member_of is None]
    if overview.suspended:
        return "Workers are suspended, so it waits until they are resumed."
    if not overview.workers:
        return "No worker is running, so it waits until one is started."
    if idle and not overview.depth:
        return "It starts at once."
    if overview.depth:
        return f"It waits for {plural(overview.depth, 'job')} before it."
    return "It starts when a worker is free."


def _duration(found: Expectation) -> str:
    if found.seconds is None:
        return "How long it takes is not known yet: no such job has finished here."
    reached = "" if found.accuracy is None else f" and reached {found.accuracy:.2%}"
    many = "The last such job" if found.jobs == 1 else f"The last {found.jobs} such jobs"
    typical = "" if found.jobs == 1 else ", in the median"
    return f"{many} took {_about(found.seconds)}{reached}{typical}."


def _about(seconds: float) -> str:
    """Return a duration no finer than it is known: 3 s, 2 min, 1 h 20 min."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _expect(ended: Sequence[Ended]) -> Expectation:
    if not ended:
        return Expectation()
    reached = [each.accuracy for each in ended if each.accuracy is not None]
    return Expectation(
        seconds=max(0.0, median(each.seconds for each in ended)), accuracy=median(reached) if reached else None,
        jobs=len(ended),
    )  # fmt: skip


def _like(table: JobTable, dataset: str, spec: TrainSpec, recipe: RecipeName | None) -> list[Ended]:
    """Return finished jobs like one with these settings: of the same network, recipe and number of epochs."""
    found = table.finished_like(dataset, spec.model, recipe, NEWEST)
    return [each for each in found if each.epochs == spec.epochs]


def _choice(name: str, said: Offered) -> DatasetChoice:
    return DatasetChoice(name=name, **said.model_dump(exclude={"at", "validation"}))


def _info(name: str, said: Offered | None) -> DatasetInfo | None:
    """Return a data set's description as far as refusals need it; None where no worker has said it."""
    if said is None or said.train is None or said.test is None or said.classes is None or said.shape is None:
        return None
    return DatasetInfo(
        name=name, path=Path(), shape=said.shape, classes=said.classes, train_count=said.train, test_count=said.test,
        mean=0.0, std=0.0, sources=(), validation_count=said.validation,
    )  # fmt: skip


def _limits(said: bytes) -> dict[str, float] | None:
    """Return the limits that a worker published; None where it is none of ours."""
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
