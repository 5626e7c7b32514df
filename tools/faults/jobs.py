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
    """When a fault strikes."""

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
    """What a round trains."""

    id: str
    fields: Fields
    """The TrainJob, without its id."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long an undisturbed job takes here."""

    first_step_s: float
    """From the start of the training process to its first step."""
    train_s: float
    whole_s: float
    """From the submission to the end."""


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What comes of a job when nothing goes wrong."""

    pace: Pace
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a job, and of the promises made about it."""

    problems: tuple[str, ...] = ()
    """A few words for each broken promise about what happens."""
    late: tuple[str, ...] = ()
    """The same for promises about how long it takes."""
    lost: bool = False
    """The job did not finish."""
    lost_s: float | None = None
    """Seconds of training that had to be done again; None: unknown."""
    double_runs: int = 0
    """Trainings of one job at the same time, or after it was finished."""
    double_publications: int = 0
    at_once: int = 1
    """Most trainings at the same time, of any job."""
    orphans: int = 0
    takeover_s: float | None = None
    """Until the next attempt began."""
    moment: Moment | None = None
    """When the fault struck."""
    missed: tuple[Moment, ...] = ()
    """Moments that it should have struck at, and came too late for."""
    not_run: str | None = None
    """Why the fault could not be had here."""

    @property
    def survived(self) -> bool:
        """Whether every promise was kept."""
        return not self.problems + self.late
