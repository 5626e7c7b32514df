"""The preparing child: reads or downloads a data set and leaves it as one memory-mapped file.

A separate process, because a user's data set may import anything, torch included.
"""

import time
from pathlib import Path
from typing import NoReturn

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from preflight.files.journal import JournalWriter
from training.data.prepare import prepare
from training.process.child_main import StopFlag, serve_request

MODULE = "training.data.prepare_child"


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class PrepareRequest:
    """Data set to prepare, and the directories to read and to write."""

    dataset: str
    data_dir: Path
    cache_dir: Path
    download: bool


REQUEST = TypeAdapter(PrepareRequest)


def run(request: PrepareRequest, journal: JournalWriter, should_stop: StopFlag) -> None:  # noqa: ARG001 - every child's signature
    """Prepare the data set and record `done` with the seconds it took."""
    began = time.perf_counter()
    info = prepare(request.dataset, request.data_dir, request.cache_dir, download=request.download)
    journal.write("done", {"path": str(info.path), "seconds": time.perf_counter() - began}, durable=True)


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, run)


if __name__ == "__main__":
    main()
