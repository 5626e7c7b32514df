"""The stages of a job by the times of its events; together they take the job's wall time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from preflight.wire import TrainResult

Record = Mapping[str, str]
"""The flat fields of an event."""
STAGES: Final = (
    "taken from the queue", "data set ready", "plan ready", "first step done", "last step done", "result there",
)  # fmt: skip
TOLERANCE: Final = 0.050
"""Seconds by which the sum of the stages may differ from the wall time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """A job that has ended, as its client saw it."""

    enqueued_at: float
    """Time just before it was enqueued, seconds since the epoch."""
    wall: float
    """Seconds from then until the client had the result."""
    recorded: float
    """Seconds from then until RQ had the job as finished."""
    result: TrainResult
    events: Sequence[Record]
    """Events of one attempt, those after the result included."""
    stages: Mapping[str, float]
    """Seconds of each of `STAGES`."""

    @property
    def train_seconds(self) -> float:
        """Seconds of its epochs."""
        return self.result.train_s or 0.0

    @property
    def beyond_training(self) -> float:
        """Seconds that its user waited and nothing was trained."""
        return self.wall - self.train_seconds

    @property
    def first_step(self) -> float:
        """Seconds from enqueue to the end of the first step."""
        return first_step_at(self.events) - self.enqueued_at

    @property
    def report(self) -> float | None:
        """Seconds from the result to the report; None where the report was there before."""
        ready = [float(event["ts"]) for event in self.events if event["type"] == "report_ready"]
        return ready[0] - time_of(self.events, "training_done") if ready else None


def stages_of(enqueued_at: float, wall: float, events: Sequence[Record]) -> dict[str, float]:
    """Return the seconds of each stage; exit where their sum is not the wall time."""
    times = [
        enqueued_at,
        *(time_of(events, kind) for kind in ("job_started", "dataset_ready", "calibration_winner")),
        first_step_at(events),
        *(time_of(events, kind) for kind in ("epoch_done", "training_done")),
    ]
    # Stages may overlap: one that is done before the stage before it takes no time.
    seconds = [after - before for before, after in pairwise(accumulate(times, max))]
    if abs(sum(seconds) - wall) > TOLERANCE:
        raise SystemExit(
            f"the stages of a job take {sum(seconds):.3f} s by its events, but its client waited {wall:.3f} s, "
            f"which may differ by {TOLERANCE:g} s; see when each event is published"
        )
    return dict(zip(STAGES, seconds, strict=True))


def time_of(events: Sequence[Record], kind: str) -> float:
    """Return the time of the last event of a type; exit where there is none."""
    times = [float(event["ts"]) for event in events if event["type"] == kind]
    if not times:
        raise SystemExit(f"a finished job published no {kind}: {[event['type'] for event in events]}")
    return times[-1]


def first_step_at(events: Sequence[Record]) -> float:
    """Return the end of the first step, by the first progress report.

    Up to 0.16.0 it only has the speed of its steps; the first one is then taken to be as fast as the mean.
    """
    first = next(event for event in events if event["type"] == "progress")
    if "first_step_at" in first:
        return float(first["first_step_at"])
    batch_size = int(next(event["batch_size"] for event in events if event["type"] == "job_started"))
    return float(first["ts"]) - (int(first["step"]) - 1) * batch_size / float(first["samples_per_s"])
