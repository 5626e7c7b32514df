"""The sink that logs events."""

import structlog

from worker.wire import AnyEvent, JobFailed, JobWarning, TrainResult


class LogSink:
    """Logs each event as one record."""

    def __init__(self, job_id: str, attempt: int) -> None:
        self._log = structlog.get_logger("preflight").bind(job_id=job_id, attempt=attempt)

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:  # noqa: ARG002 - it is in the event
        """Log the event under its type."""
        fields = event.model_dump(exclude={"v", "job_id", "attempt", "ts", "type"})
        if isinstance(event, JobFailed):
            # `message` is the name of the log record.
            self._log.error(event.type, **{("detail" if k == "message" else k): v for k, v in fields.items()})
        elif isinstance(event, JobWarning):
            self._log.warning(event.message, seq=event.seq)
        else:
            fields["detail"] = fields.pop("message", None)
            self._log.info(event.type, **{name: value for name, value in fields.items() if name != "detail" or value})
