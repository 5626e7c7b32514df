"""Choices that a form offers, and the forecast of a job that it would enqueue: by workers, queue and earlier jobs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, get_args

from preflight.client.catalog import Catalog, Offered
from preflight.contract.recipes import REACHES, RECIPES, RecipeName
from preflight.contract.spec import TrainSpec
from preflight.numbers import THIN, about, plural
from preflight.wire import Count, Label, Seconds, Share, TrainJob
from worker.web.listing.overview import Overview
from worker.web.listing.table import Ended, JobTable
from worker.web.models import ApiModel

NEWEST: Final = 20
"""Finished jobs, the newest ones, from which the next one is estimated."""


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
    """Results of earlier jobs like this one; null: no finished one was found."""

    seconds: Seconds | None = None
    """Median duration."""
    accuracy: Share | None = None
    """Median test accuracy."""
    jobs: Count = 0
    """Number of these jobs."""


class RecipeChoice(ApiModel):
    """A recipe."""

    name: Label
    mnist: Share
    """Test accuracy on MNIST, as it was measured."""
    here: Expectation
    """Expectation on the data set that was asked for."""
    text: str
    """What it reaches and how long it takes, in words."""


class Choices(ApiModel):
    """The names that a job can use; empty until a worker has published those that it has."""

    datasets: tuple[DatasetChoice, ...]
    models: tuple[Label, ...]
    recipes: tuple[RecipeChoice, ...]


class Forecast(ApiModel):
    """Forecast of a job that would be enqueued now."""

    message: str
    """What is trained, when it starts, and how long it takes."""
    expectation: Expectation


def choices(catalog: Catalog, table: JobTable, dataset: str) -> Choices:
    """Return what a form offers; recipes with their earlier results on `dataset`."""
    return Choices(
        datasets=tuple(_choice(name, said) for name, said in catalog.datasets.items()),
        models=catalog.models,
        recipes=tuple(
            _recipe(name, _expect(_like(table, dataset, RECIPES[name], name))) for name in get_args(RecipeName)
        ),
    )


def _recipe(name: RecipeName, here: Expectation) -> RecipeChoice:
    reached, where = (REACHES[name], "on MNIST") if here.accuracy is None else (here.accuracy, "here")
    took = "time not known yet" if here.seconds is None else f"about {about(here.seconds)}"
    text = f"{100 * reached:.1f}{THIN}% {where}; {took}"
    return RecipeChoice(name=name, mnist=REACHES[name], here=here, text=text)


def forecast(job: TrainJob, catalog: Catalog, table: JobTable, overview: Overview) -> Forecast:
    """Return what the job would do."""
    found = _expect(_like(table, job.dataset, job.spec(), job.recipe))
    what = f"the recipe {job.recipe}" if job.recipe else f"{job.spec().model} for {plural(job.spec().epochs, 'epoch')}"
    start = "" if job.init_from is None else f", from the weights of {job.init_from},"
    data = _words(job.dataset, catalog.datasets.get(job.dataset))
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
        return "How long it takes is not known yet: no finished job like it was found."
    reached = "" if found.accuracy is None else f" and reached {found.accuracy:.2%}"
    many = "The last such job" if found.jobs == 1 else f"The last {found.jobs} such jobs"
    typical = "" if found.jobs == 1 else ", in the median"
    return f"{many} took about {about(found.seconds)}{reached}{typical}."


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
