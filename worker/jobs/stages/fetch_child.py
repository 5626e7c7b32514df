"""The child that finds imported data in the object store: manifests first, then the store of the version that is meant.

A separate process, because the clients of object stores are large and start threads.
"""

from typing import Final, NoReturn

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from preflight.files.journal import JournalWriter
from training.catalog.catalog import Catalog
from training.catalog.shared import SharedCatalog
from training.catalog.version import Reference
from training.process.child_main import StopFlag, serve_request
from worker.config.settings import load

MODULE: Final = "worker.jobs.stages.fetch_child"
GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class FetchRequest:
    """Request for the data set that a job needs."""

    dataset: str


REQUEST = TypeAdapter(FetchRequest)


def run(request: FetchRequest, journal: JournalWriter, should_stop: StopFlag) -> None:  # noqa: ARG001 - every child's signature
    """Fetch the missing files, and record `done` with the version that the request means."""
    settings = load()
    catalog = Catalog(settings.data_dir)
    shared = SharedCatalog(settings.dataset_url or "", catalog)
    shared.pull(Reference.parse(request.dataset).name)
    version = catalog.find(request.dataset)
    shared.fetch(version, round(settings.dataset_cache_gb * GIB))
    journal.write("done", {"dataset": version.reference}, durable=True)


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, run)


if __name__ == "__main__":
    main()
