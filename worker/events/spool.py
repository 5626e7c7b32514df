"""The events of a job on disk, so that neither a Redis that is away nor one that was emptied loses any."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue, ValidationError

from training.process.journal import JournalReader, JournalWriter, Record
from worker.jobs.paths import attempts
from worker.wire import EVENT, AnyEvent, TrainResult

NAME: Final = "events.jsonl"
LARGEST: Final = 16 << 20
"""Bytes of one attempt's events; beyond them progress is no longer kept, turning points are. Some 8 hours."""


@dataclass(frozen=True, slots=True)
class Spooled:
    """An event, and the result that is stored with it."""

    event: AnyEvent
    result: TrainResult | None = None


class Spool:
    """The events of one attempt, beside those that earlier attempts left on this disk."""

    def __init__(self, job_directory: Path, job_id: str, attempt: int) -> None:
        """Open the spool of `attempt` in `job_directory`/`attempt`, which is there; raises `OSError`."""
        self._directory = job_directory
        self._job_id = job_id
        self._path = job_directory / str(attempt) / NAME
        self._journal = JournalWriter(self._path, job_id)

    def append(self, spooled: Spooled) -> None:
        """Keep an event. A full disk loses the copy and not the training."""
        if spooled.event.type == "progress" and self._size() > LARGEST:
            return
        payload: dict[str, JsonValue] = {"event": spooled.event.model_dump(mode="json")}
        if spooled.result is not None:
            payload["result"] = spooled.result.model_dump(mode="json")
        self._journal.write("event", payload)

    def replay(self) -> list[Spooled]:
        """Return the events of all attempts that lie on this disk, oldest first."""
        return [
            spooled
            for attempt in attempts(self._directory)
            for record in JournalReader(self._directory / str(attempt) / NAME, self._job_id).read()
            if (spooled := _decode(record)) is not None
        ]

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0


def _decode(record: Record) -> Spooled | None:
    """Return what a record holds; None for one of another version."""
    try:
        match record.payload:
            case {"event": dict(event), "result": dict(result)}:
                # As JSON: a plan is strict, and takes no mapping for itself from Python.
                return Spooled(EVENT.validate_python(event), TrainResult.model_validate_json(json.dumps(result)))
            case {"event": dict(event)}:
                return Spooled(EVENT.validate_python(event))
    except ValidationError:
        return None
    return None
