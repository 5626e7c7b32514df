"""Spool: a job's events on disk, published again where Redis was unavailable or lost its data."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue, ValidationError

from preflight.files.journal import JournalReader, JournalWriter, Record
from preflight.wire import EVENT, AnyEvent, TrainResult
from worker.state.paths import attempts

FILE_NAME: Final = "events.jsonl"
MAX_SPOOL_BYTES: Final = 16 << 20
"""Size of an attempt's spool from which `progress` is dropped, after some 8 hours."""


@dataclass(frozen=True, slots=True)
class SpooledEvent:
    """An event and the result published with it."""

    event: AnyEvent
    result: TrainResult | None = None


class Spool:
    """Appends the events of one attempt, and reads those of all attempts on this disk."""

    def __init__(self, job_directory: Path, job_id: str, attempt: int) -> None:
        """Open the spool in the existing directory `job_directory`/`attempt`; raises `OSError`."""
        self._directory = job_directory
        self._job_id = job_id
        self._path = job_directory / str(attempt) / FILE_NAME
        self._journal = JournalWriter(self._path, job_id)

    def append(self, spooled: SpooledEvent) -> None:
        """Append an event; a full disk is ignored."""
        if spooled.event.type == "progress" and self._size() > MAX_SPOOL_BYTES:
            return
        payload: dict[str, JsonValue] = {"event": spooled.event.model_dump(mode="json")}
        if spooled.result is not None:
            payload["result"] = spooled.result.model_dump(mode="json")
        self._journal.write("event", payload)

    def replay(self) -> list[SpooledEvent]:
        """Return the events of all attempts on this disk, oldest first."""
        return [
            spooled
            for attempt in attempts(self._directory)
            for record in JournalReader(self._directory / str(attempt) / FILE_NAME, self._job_id).read()
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


def _decode(record: Record) -> SpooledEvent | None:
    """Return the event of a record; None for another version."""
    try:
        match record.payload:
            case {"event": dict(event), "result": dict(result)}:
                # As JSON, because the strict `Plan` accepts no dict.
                return SpooledEvent(EVENT.validate_python(event), TrainResult.model_validate_json(json.dumps(result)))
            case {"event": dict(event)}:
                return SpooledEvent(EVENT.validate_python(event))
    except ValidationError:
        return None
    return None
