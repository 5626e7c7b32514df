"""Outbox: a producer's copies of its jobs, to enqueue them again where Redis loses its data."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue, ValidationError

from preflight.errors import InvalidConfig
from preflight.files.atomic_files import open_regular, write_atomically
from preflight.wire import MAX_JOB_BYTES, TrainJob, is_job_id

SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A job in the outbox."""

    job: TrainJob
    job_timeout: int


class Outbox:
    """One file for each job, under its id."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, job_id: str, payload: dict[str, JsonValue], job_timeout: int) -> None:
        """Save a job; raises `OSError`."""
        self._directory.mkdir(parents=True, exist_ok=True)
        record = {"job": payload, "job_timeout": job_timeout, "at": time.time()}
        write_atomically(self._path(job_id), json.dumps(record).encode())

    def delete(self, job_id: str) -> None:
        """Delete a job, if it is there."""
        self._path(job_id).unlink(missing_ok=True)

    def find(self, job_id: str) -> OutboxEntry | None:
        """Return a job; None where it is not there, its file is damaged, or no worker would take it."""
        try:
            with open_regular(self._path(job_id)) as file:
                record = json.loads(file.read(2 * MAX_JOB_BYTES))
            match record:
                case {"job": dict(payload), "job_timeout": int(job_timeout)}:
                    return OutboxEntry(TrainJob.model_validate_json(json.dumps(payload)), job_timeout)
        except (OSError, ValueError, RecursionError, ValidationError, InvalidConfig):
            return None
        return None

    def ids(self) -> Iterator[str]:
        """Yield the ids of all jobs."""
        found = self._directory.iterdir() if self._directory.is_dir() else iter(())
        names = (path.name.removesuffix(SUFFIX) for path in found if path.name.endswith(SUFFIX))
        return (name for name in sorted(names) if is_job_id(name))

    def _path(self, job_id: str) -> Path:
        return self._directory / f"{job_id}{SUFFIX}"
