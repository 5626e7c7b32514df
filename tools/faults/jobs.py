"""Jobs of a fault round: what is trained, when a fault strikes, and what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

CALIBRATION_S: Final = 2.0
"""Seconds that a calibration may take, the import of torch apart."""

FIRST_REPORT_S: Final = 0.5
"""Seconds from the first step to the first progress report: training.loop.trainer's window, which imports torch."""

Fields = Mapping[str, JsonValue]

FIELDS: Final[Fields] = {
    "type": "preflight.train.v1", "dataset": "digits", "model": "cnn", "epochs": 3, "batch_size": 2,
    "deterministic": True, "calibrate": False, "plan": {"threads": 1},
}  # fmt: skip
"""The usual job: about five seconds of training on one core, in small batches, so that there are many steps."""


class Moment(StrEnum):
    """A moment at which a fault strikes."""

    DEQUEUED = "between dequeue and start"
    CALIBRATION = "calibration"
    FIRST_STEP = "first step"
    MID_EPOCH = "mid epoch"
    CHECKPOINT = "checkpoint write"
    ARTIFACT = "artifact write"
    MARKED = "after the marker, before the return"


BRIEF: Final = (Moment.DEQUEUED, Moment.CHECKPOINT, Moment.ARTIFACT, Moment.MARKED)
"""Moments that last milliseconds."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that a round trains."""

    id: str
    fields: Fields
    """The TrainJob, without its id."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations of an undisturbed job here."""

    first_step_s: float
    """Seconds from the start of the training process to its first step."""
    train_s: float
    whole_s: float
    """Seconds from the submission to the end."""


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """Pace and result of a job when nothing goes wrong."""

    pace: Pace
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Outcome of a job, and of the promises made about it."""

    problems: tuple[str, ...] = ()
    """A few words for each broken promise about what happens."""
    late: tuple[str, ...] = ()
    """A few words for each broken promise about how long it takes."""
    lost: bool = False
    """Whether the job did not finish."""
    lost_s: float | None = None
    """Seconds of training that had to be done again; None: unknown."""
    double_runs: int = 0
    """Trainings of one job at the same time, or after it was finished."""
    double_publications: int = 0
    at_once: int = 1
    """Most trainings at the same time, of any job."""
    orphans: int = 0
    takeover_s: float | None = None
    """Seconds until the next attempt began."""
    moment: Moment | None = None
    """Moment at which the fault struck."""
    missed: tuple[Moment, ...] = ()
    """Moments that it should have struck at, and came too late for."""
    not_run: str | None = None
    """Reason for which the fault could not be tried here."""

    @property
    def survived(self) -> bool:
        """Whether every promise was kept."""
        return not self.problems + self.late
