"""The sink that logs events."""

from collections.abc import Mapping

import structlog
from pydantic import JsonValue

from preflight.wire import (
    TERMINAL_EVENTS,
    AnyEvent,
    CalibrationTrial,
    CalibrationWinner,
    JobFailed,
    JobStarted,
    JobWarning,
    TrainResult,
)
from worker.events.sentences import sentence, skipped_sentence


class LogSink:
    """Logs each event as one record: its type as `event`, a sentence as `message`, and its fields."""

    def __init__(self, job_id: str, attempt: int, *, enqueued_at: float | None = None) -> None:
        """Log the events of an attempt, the last with the total time.

        That is the time since `enqueued_at`, seconds since the epoch, else since the start.
        """
        self._log = structlog.get_logger("preflight").bind(job_id=job_id, attempt=attempt)
        self._began = enqueued_at
        self._skipped: list[CalibrationTrial] = []

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:  # noqa: ARG002 - it is in the event
        """Log the event."""
        fields = event.model_dump(exclude={"v", "job_id", "attempt", "ts", "type", "message"})
        log = self._log.info
        match event:
            case JobFailed():
                log = self._log.error
            case JobWarning():
                log = self._log.warning
            case CalibrationTrial(verdict="skipped"):
                self._skipped.append(event)
                log = self._log.debug
            case CalibrationWinner():
                self._log_skipped()
        log(event.type, message=sentence(event), **fields, **self._times(event))

    def _log_skipped(self) -> None:
        """Log the trials that were not run as one record; each of them is one of level debug."""
        skipped, self._skipped = self._skipped, []
        if skipped:
            self._log.info("calibration_skipped", message=skipped_sentence(skipped), skipped=len(skipped))

    def _times(self, event: AnyEvent) -> Mapping[str, JsonValue]:
        if isinstance(event, JobStarted):
            self._began = event.ts if self._began is None else self._began
        elif event.type in TERMINAL_EVENTS and self._began is not None:
            return {"total_s": round(max(0.0, event.ts - self._began), 2)}
        return {}
