"""Deletion of single samples, and what refers to them, for `preflight data erase` and the page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict
from redis.exceptions import RedisError

from preflight.errors import DatasetError, PreflightError
from preflight.numbers import plural
from preflight.wire import ACTIVE_STATUSES, Status
from training.catalog.catalog import Catalog
from training.catalog.version import Reference, Version
from training.importing.difference import read_rows
from training.importing.erasing import Erased, Erasure, described, erase, is_erased
from training.importing.shards import SIDES
from worker.config.settings import Settings
from worker.jobs.local.importing import catalogs, jobs_that_need
from worker.models.store import open_store

MOST_NAMED: Final = 20
"""Most jobs and models that are named; all are counted."""


class SampleUse(BaseModel):
    """A sample, and what refers to it."""

    model_config = ConfigDict(frozen=True)

    dataset: str
    """The version, as `photos@2`."""
    sha256: str
    """SHA-256 of the content in which the sample has this number."""
    sample: int
    label: str
    side: str
    """train, validation or test."""
    versions: tuple[str, ...]
    """Versions of the data set that have the same picture."""
    elsewhere: tuple[str, ...]
    """Versions of other data sets that have the picture, and that keep it."""
    active_jobs: tuple[str, ...]
    """Jobs that wait or run on a version with the picture, or on one that cannot be read; up to 20 are named."""
    active: int | None
    """Number of jobs that wait or run; null: Redis does not answer."""
    trained_jobs: tuple[str, ...]
    """Finished jobs that were trained on such a version, whose models keep what they have learned."""
    trained: int | None
    aliases: tuple[str, ...]
    """Models with names that were trained on such a version."""


def sample_use(reference: str, sample: int, settings: Settings) -> SampleUse:
    """Return a sample and what refers to it.

    Raises:
        InvalidConfig: there is no such version or sample.
        DatasetError: the rows of a version's samples cannot be read.
    """
    catalog, shared = catalogs(settings)
    if shared is not None:
        shared.pull_all()
    version = catalog.find(reference)
    fetch = (lambda _: None) if shared is None else shared.fetch_rows
    fetch(version)
    wanted = described(catalog, version, Erasure(version.reference, version.sha256, (sample,), ""))
    row = read_rows(catalog, version)[sample]
    own: list[str] = []
    others: list[str] = []
    without: set[int] = set()
    for each in catalog.versions():
        holds = _holds(catalog, each, wanted, fetch)
        if holds:
            (own if each.name == version.name else others).append(each.reference)
        elif holds is False and each.name == version.name:
            without.add(each.version)
    active, trained = (
        _jobs(version.name, catalog, settings, statuses, without) for statuses in (ACTIVE_STATUSES, ("finished",))
    )
    return SampleUse(
        dataset=version.reference, sha256=version.sha256, sample=sample, label=version.classes[int(row["label"])].name,
        side=SIDES[int(row["side"])], versions=tuple(own), elsewhere=tuple(others[:MOST_NAMED]),
        active_jobs=tuple(active or ())[:MOST_NAMED], active=None if active is None else len(active),
        trained_jobs=tuple(trained or ())[:MOST_NAMED], trained=None if trained is None else len(trained),
        aliases=_aliases(version.name, settings, without),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gone:
    """Result of a deletion."""

    versions: tuple[str, ...]
    """Versions that have changed."""
    pending: int
    """Former contents that a process still reads; they go when it has ended."""

    def __str__(self) -> str:
        """Return a sentence."""
        if not self.versions:
            return "no version has the sample any more"
        rest = (
            f"; {plural(self.pending, 'former content')} is kept until the job that reads it has ended"
            if self.pending else ""
        )  # fmt: skip
        return f"deleted from {', '.join(self.versions)}{rest}"


def erase_local(asked: Erasure, settings: Settings, check: Callable[[], None] = lambda: None) -> Gone:
    """Delete samples from every version of a data set; their hashes stay.

    Raises:
        InvalidConfig: there is no such sample, the version has changed, or one would be left empty.
        DatasetError: a version cannot be read or written.
    """
    catalog, shared = catalogs(settings)
    name = Reference.parse(asked.dataset).name

    def fetch(version: Version) -> None:
        if shared is not None:
            shared.fetch(version, round(settings.dataset_cache_gb * (1 << 30)))
            shared.fetch_rows(version)

    if shared is not None:
        shared.pull(name)
    changed = erase(catalog, asked, fetch, check)
    if shared is not None:
        shared.push_erased(name)
    used = {version.sha256 for version in catalog.versions()}
    former = {sha256 for version in changed for sha256 in version.former[-1:]} - used
    return Gone(
        tuple(version.reference for version in changed), sum(catalog.store(sha256).exists() for sha256 in former)
    )


def _holds(
    catalog: Catalog, version: Version, wanted: Sequence[Erased], fetch: Callable[[Version], None]
) -> bool | None:
    """Whether a version has one of these pictures; None where the rows of its samples cannot be read."""
    try:
        fetch(version)
        return bool(is_erased(read_rows(catalog, version), wanted).any())
    except DatasetError:
        return None


def _jobs(
    name: str, catalog: Catalog, settings: Settings, statuses: Sequence[Status], without: Collection[int]
) -> list[str] | None:
    """Return the ids of jobs on a data set, except on versions `without` the picture; None: Redis does not answer."""
    try:
        return jobs_that_need(Reference(name, None), catalog, settings, statuses, without)
    except (RedisError, OSError):
        return None


def _aliases(name: str, settings: Settings, without: Collection[int]) -> tuple[str, ...]:
    """Return the names of models that were trained on a data set, except on versions `without` the picture."""
    store, found = open_store(settings), []
    for alias in store.names():
        try:
            trained_on = store.alias(alias).current.dataset
        except PreflightError:  # a damaged one
            continue
        trained_name, _, number = trained_on.partition("@")
        if trained_name == name and number not in map(str, without):
            found.append(alias)
    return tuple(found)
