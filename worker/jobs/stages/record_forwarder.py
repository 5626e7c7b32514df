"""Record forwarder: emits events for the records of the training child, and counts checkpoints."""

from typing import Final

from preflight.files.journal import Record
from worker.jobs.context import JobContext

EVENTS_BY_RECORD: Final = {
    "progress": "progress", "epoch": "epoch_done", "prediction": "prediction_checked", "profile": "training_profile",
    "adapted": "plan_adapted", "model": "model_built",
}  # fmt: skip
"""Types of events, by the kind of record that has the same payload."""


class RecordForwarder:
    """Forwards the records of all training children of an attempt."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self.checkpoints = 0
        """Checkpoints saved in this attempt."""

    def forward(self, record: Record) -> None:
        """Emit the event for `record`."""
        payload, context = record.payload, self._context
        match record.kind:
            case "warning":
                rank = payload.get("rank")
                context.warn(str(payload["message"]), rank if isinstance(rank, int) else None)
            case "resumed":
                context.emit("job_resumed", {"epochs_done": payload["epoch"], "steps_done": payload["step"]})
            case "checkpoint":
                self.checkpoints += 1
                context.control.mark_progress()
                context.emit("checkpoint_saved", {
                    "epochs_done": payload["epoch"], "steps_done": payload["step"], "took_s": payload["seconds"],
                    "checkpoint_bytes": payload["bytes"],
                })  # fmt: skip
            case kind if kind in EVENTS_BY_RECORD:
                context.emit(EVENTS_BY_RECORD[kind], payload)
