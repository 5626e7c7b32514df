"""The sink that logs events."""

from collections.abc import Mapping

import structlog
from pydantic import JsonValue

from worker.events.sentences import sentence
from worker.wire import TERMINAL_EVENTS, AnyEvent, JobFailed, JobStarted, JobWarning, TrainResult


class LogSink:
    """Logs each event as one record: its type as `event`, a sentence as `message`, and its fields."""

    def __init__(self, job_id: str, attempt: int, *, enqueued_at: float | None = None) -> None:
        """Log the events of an attempt, the last with the total time.

        That is the time since `enqueued_at`, seconds since the epoch, else since the start.
        """
        self._log = structlog.get_logger("preflight").bind(job_id=job_id, attempt=attempt)
        self._began = enqueued_at

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:  # noqa: ARG002 - it is in the event
        """Log the event."""
        fields = event.model_dump(exclude={"v", "job_id", "attempt", "ts", "type", "message"})
        level = "error" if isinstance(event, JobFailed) else "warning" if isinstance(event, JobWarning) else "info"
        log = {"error": self._log.error, "warning": self._log.warning, "info": self._log.info}[level]
        log(event.type, message=sentence(event), **fields, **self._times(event))

    def _times(self, event: AnyEvent) -> Mapping[str, JsonValue]:
        if isinstance(event, JobStarted):
            self._began = event.ts if self._began is None else self._began
        elif event.type in TERMINAL_EVENTS and self._began is not None:
            return {"total_s": round(max(0.0, event.ts - self._began), 3)}
        return {}
