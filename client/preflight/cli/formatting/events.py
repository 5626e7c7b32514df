"""Events as lines of text, and the exit code of the last one."""

from typing import Final

from preflight import wire
from preflight.cli.exit_codes import CANCELLED, FAILURE
from preflight.cli.formatting.text import printable
from preflight.events.sentences import sentence

UNSAID: Final = (
    wire.MemoryProbed, wire.CheckpointSaved, wire.TrainingConfig, wire.LoaderConfig, wire.ModelBuilt,
)  # fmt: skip
"""Events for machines: the lines on the winner of the calibration, the progress and the end say what people need."""


def format_event(event: wire.AnyEvent) -> str | None:
    """Return the event as one printable line, the sentence of the log; None where another line says it."""
    match event:
        case wire.CalibrationTrial(verdict="skipped"):
            return None  # `preflight calibrate --explain` says why
        case wire.PredictionChecked() if event.is_warned_of:
            return None
    return None if isinstance(event, UNSAID) else printable(sentence(event))


def exit_code(last: wire.AnyEvent | None) -> int:
    """Return the exit code for a job's last event."""
    match last:
        case wire.TrainingDone():
            return 0
        case wire.JobCancelled():
            return CANCELLED
    return FAILURE
