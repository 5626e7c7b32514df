"""The sink that logs events."""

from collections.abc import Mapping
from typing import Final, Literal, Protocol

import structlog
from pydantic import JsonValue

from preflight.events.sentences import sentence, skipped_sentence
from preflight.wire import (
    TERMINAL_EVENTS,
    AnyEvent,
    CalibrationTrial,
    CalibrationWinner,
    CheckpointSaved,
    JobFailed,
    JobStarted,
    JobWarning,
    LoaderConfig,
    MemoryProbed,
    ModelBuilt,
    PredictionChecked,
    Progress,
    TrainResult,
)

DETAILS: Final = (
    CalibrationTrial, CheckpointSaved, LoaderConfig, MemoryProbed, ModelBuilt, PredictionChecked, Progress,
)  # fmt: skip
"""Types of events of level debug. The winner of a calibration has the reasons; a `warning` reports a late training."""
PROGRESS_SECONDS: Final = 60.0
"""Seconds between two records of progress of level info, from the start of the job on."""
UNSAID: Final = frozenset(
    {"v", "job_id", "attempt", "ts", "type", "message", "class_precision", "class_recall", "class_f1"}
)
"""Fields of an event that its record leaves out: those that the record has anyway, and figures of each class."""


class Sink(Protocol):
    """Receives the events of an attempt; an unavailable destination must not stop the training."""

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:
        """Process an event; `result` comes with the last event of a finished job."""


class LogSink:
    """Logs each event as one record: its type as `event`, a sentence as `message`, and its fields."""

    def __init__(self, job_id: str, attempt: int, *, enqueued_at: float | None = None) -> None:
        """Log the events of an attempt, the last with the total time.

        That is the time since `enqueued_at`, seconds since the epoch, else since the start.
        """
        self._log = structlog.get_logger("preflight").bind(job_id=job_id, attempt=attempt)
        self._began = enqueued_at
        self._first_ts: float | None = None
        """Time of the attempt's first event."""
        self._progress_at: float | None = None
        """Time of the last progress of level info."""
        self._skipped: list[CalibrationTrial] = []

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:  # noqa: ARG002 - it is in the event
        """Log the event."""
        if isinstance(event, CalibrationTrial) and event.verdict == "skipped":
            self._skipped.append(event)
        if isinstance(event, CalibrationWinner):
            self._log_skipped()
        levels = {
            "debug": self._log.debug,
            "info": self._log.info,
            "warning": self._log.warning,
            "error": self._log.error,
        }
        levels[self._level(event)](event.type, message=sentence(event), **self._fields(event))
        self._first_ts = event.ts if self._first_ts is None else self._first_ts

    def _level(self, event: AnyEvent) -> Literal["debug", "info", "warning", "error"]:
        match event:
            case JobFailed():
                return "error"
            case JobWarning():
                return "warning"
            case Progress() if event.ts - (self._progress_at or self._first_ts or event.ts) >= PROGRESS_SECONDS:
                self._progress_at = event.ts
                return "info"
        return "debug" if isinstance(event, DETAILS) else "info"

    def _fields(self, event: AnyEvent) -> Mapping[str, JsonValue]:
        fields = event.model_dump(exclude={*UNSAID}, exclude_none=True)
        if isinstance(event, JobStarted):
            self._began = event.ts if self._began is None else self._began
        elif event.type in TERMINAL_EVENTS and self._began is not None:
            fields["total_s"] = round(max(0.0, event.ts - self._began), 2)
        return fields

    def _log_skipped(self) -> None:
        """Log the trials that were not run as one record; each of them also has its own record."""
        skipped, self._skipped = self._skipped, []
        if skipped:
            self._log.debug("calibration_skipped", message=skipped_sentence(skipped), skipped=len(skipped))
