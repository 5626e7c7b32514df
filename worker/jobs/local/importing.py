"""Imports for `preflight data`."""

from __future__ import annotations

import csv
import getpass
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from preflight import Client
from preflight.config.secrets import redact_urls
from preflight.errors import InvalidConfig
from preflight.wire import ACTIVE_STATUSES, Status
from training.catalog.catalog import Catalog
from training.catalog.shared import SharedCatalog
from training.catalog.version import Reference, Version
from training.importing.form import Options
from training.importing.revision import revise
from training.importing.run import Progress, Request, run_import
from training.importing.sources.base import Source
from training.importing.sources.detect import read_source
from worker.config.settings import Settings, child_environment
from worker.jobs.local.remote_source import fetch, is_url

MAX_PROCESSES = 16
MAX_JOBS = 10_000
"""Most jobs that are asked which data set they need."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An import to run: its source and the name of its data set."""

    name: str
    source: str
    """Path or URL; for an upload, the user's name for it."""
    options: Options
    fetch: Callable[[Path, Callable[[], None]], Path] | None = None
    """Returns the path of an upload, fetched to the working directory where it is elsewhere; None: no upload."""
    upload: str = ""
    """Id of the upload: a continued import has the same one."""
    processes: int | None = None
    """Number of processes that decode; None: one for each processor."""


def catalogs(settings: Settings) -> tuple[Catalog, SharedCatalog | None]:
    """Return the catalog of the data directory, and that of the object store where there is one."""
    catalog = Catalog(settings.data_dir)
    return catalog, None if settings.dataset_url is None else SharedCatalog(settings.dataset_url, catalog)


def import_local(
    asked: Asked, settings: Settings, tell: Callable[[Progress], None], check: Callable[[], None] = lambda: None
) -> tuple[Version, bool]:
    """Import a source as the next version of a name; returns it, and whether it is new.

    `check` is called several times a second, and ends the import by what it raises.

    Raises:
        PreflightError: it was refused; nothing is left behind.
    """
    source, options = asked.source, asked.options
    allowed = [prefix.strip() for prefix in settings.data_sources.split(",") if prefix.strip()]

    def find(work: Path, check: Callable[[], None]) -> Source:
        if asked.fetch is not None:
            path = asked.fetch(work, check)
        else:
            path = fetch(source, allowed, work, check) if is_url(source) else Path(source).expanduser().absolute()
        return read_source(path, options, work, check)

    request = Request(
        name=asked.name, source=redact_urls(source), options=options, environment=child_environment(),
        processes=asked.processes or min(len(os.sched_getaffinity(0)), MAX_PROCESSES), upload=asked.upload,
    )  # fmt: skip
    catalog, shared = catalogs(settings)
    if shared is not None:
        shared.pull(asked.name)  # the next number is one that no other machine has given
    version, is_new = run_import(request, catalog, find, tell, check)
    if shared is not None:
        tell(Progress(stage="uploading"))
        shared.push(version)
    return version, is_new


def alias_local(name: str, reference: str, settings: Settings) -> Version:
    """Make a name an alias of a version, or of the newest of another name; return that version.

    Raises:
        InvalidConfig: the name is taken, or there is no such version.
    """
    catalog, shared = catalogs(settings)
    if shared is not None:
        shared.pull(Reference.parse(reference).name)
    found = catalog.alias(name, reference)
    if shared is not None:
        shared.push_alias(name)
    return found


def relabel_local(reference: str, text: str, settings: Settings, by: str | None) -> Version:
    """Make the next version of a data set with other labels; `text` has lines `number,class` or `number`.

    Raises:
        InvalidConfig: a line, a sample or a class is wrong, or the version is not the newest.
        DatasetError: it cannot be read or written.
    """
    changes: dict[int, str | None] = {}
    for line, written in enumerate(text.splitlines(), 1):
        try:
            row = next(csv.reader([written], strict=True), [])
        except csv.Error as error:
            raise InvalidConfig(
                f"line {line} ({written[:80]!r}) cannot be divided into columns ({error}); correct it", field="changes"
            ) from error
        if not row:
            continue
        number = row[0].strip()
        if not (number.isascii() and number.isdigit() and len(number) < 9 and len(row) <= 2):
            raise InvalidConfig(
                f"line {line} is {','.join(row)[:80]!r}, but must be the number of a sample and a class",
                field="changes",
            )
        changes[int(number)] = row[1].strip() or None if len(row) > 1 else None
    catalog, shared = catalogs(settings)
    if shared is not None:
        shared.pull(Reference.parse(reference).name)
        shared.fetch(catalog.find(reference), round(settings.dataset_cache_gb * (1 << 30)))
        shared.fetch_rows(catalog.find(reference))
    version = revise(catalog, reference, changes, by or getpass.getuser())
    if shared is not None:
        shared.push(version)
    return version


def remove_local(reference: str, settings: Settings, *, force: bool) -> list[Version]:
    """Remove a version, all versions of a name, or an alias; returns the versions that are gone.

    Raises:
        InvalidConfig: there is no such data set, or a job needs it; or, without `force`, Redis cannot be asked.
    """
    from redis.exceptions import RedisError  # not for imports, which it would slow down

    catalog, shared = catalogs(settings)
    asked = Reference.parse(reference)
    catalog.find(reference)
    try:
        needing = jobs_that_need(asked, catalog, settings)
    except (RedisError, OSError) as error:
        if not force:
            raise InvalidConfig(
                f"whether a job needs {reference} cannot be asked, as Redis does not answer ({error}); "
                "try again, or add --force",
                field="dataset",
            ) from error
        needing = []
    if needing:
        raise InvalidConfig(
            f"{reference} is needed by {len(needing)} waiting or running {'job' if len(needing) == 1 else 'jobs'} "
            f"({', '.join(needing[:5])}); wait until they have ended, or cancel them",
            field="dataset",
        )
    gone = catalog.remove(reference)
    if shared is not None:
        for version in gone:
            shared.remove(version)
    return gone


def jobs_that_need(
    asked: Reference, catalog: Catalog, settings: Settings, statuses: Collection[Status] = ACTIVE_STATUSES,
    but: Collection[int] = (),
) -> list[str]:  # fmt: skip
    """Return the ids of jobs that name a version, or a name or alias of it, `but` of some; raises `RedisError`."""
    key = settings.signing_key
    client = Client(
        settings.redis_url, queue=settings.queue, signing_key=None if key is None else key.get_secret_value()
    )
    aliases = catalog.aliases()
    found = []
    for state in client.jobs(limit=MAX_JOBS, statuses=statuses):
        named = state.dataset or (state.request or {}).get("dataset")
        if not isinstance(named, str):
            request = client.request(state.job_id) or {}
            named = request.get("dataset")
        if not isinstance(named, str):
            continue
        try:
            needed = Reference.parse(named)
        except InvalidConfig:
            continue
        is_alias = needed.version is None and needed.name in aliases and asked.name != needed.name
        meant = Reference.parse(aliases[needed.name]) if is_alias else needed
        numbers = catalog.numbers(meant.name)
        version = meant.version or (numbers[-1] if numbers else None)
        is_alias_itself = asked.name in aliases and asked.name == needed.name
        is_asked = asked.name == meant.name and asked.version in (None, version) and version not in but
        if is_alias_itself or is_asked:
            found.append(state.job_id)
    return found
