"""The report of a run: what it is made of, known while the run goes on; `child.py` makes it."""

from collections.abc import Mapping
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pydantic import JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass

from calibration.result import Finding
from training.config.spec import STRICT
from training.loop.prediction import Prediction

REPORT: Final = "report.html"
"""Beside the model."""
LONGEST: Final = 60.0
"""Seconds after which a report is given up: matplotlib may look through all fonts of a slow disk at its first use."""
MOST_POINTS: Final = 512
"""Of the training loss; a picture has no room for more."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ReportRequest:
    """What the page is to be made of, beside what lies with the model."""

    job_id: str
    artifact: Path
    """The directory of the model; the page goes there too."""
    store: Path
    """The prepared data set."""
    why: str
    """Why the plan was chosen."""
    facts: dict[str, str]
    """What is known of the container."""
    finding: Finding | None
    """What calibration found out; None where nothing was measured."""
    prediction: Prediction | None
    """For the plan that the training ended under."""
    calibration_s: float
    """Wall time of the choice of the plan, the import of torch included."""
    training_s: float
    """Wall time of the training processes of this attempt."""
    losses: tuple[tuple[float, float], ...] = field(default=())
    """(epochs done, training loss) by window."""


REQUEST: Final = TypeAdapter(ReportRequest)


class Losses:
    """The training loss by window: however long a training, not more than `MOST_POINTS` of them."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self._every = 1
        self._heard = 0

    def hear(self, progress: Mapping[str, JsonValue]) -> None:
        """Take a `progress` record; one that goes on from a checkpoint takes the place of what came after that."""
        match progress:
            case {"epoch": int(epoch), "step": int(step), "steps": int(steps), "loss": float(loss)}:
                at = epoch - 1 + step / steps
                while self.points and self.points[-1][0] >= at:
                    self.points.pop()
                self._heard += 1
                if self._heard % self._every == 0:
                    self.points.append((at, loss))
                if len(self.points) == MOST_POINTS:
                    self.points, self._every = self.points[1::2], 2 * self._every


def missing() -> str | None:
    """Say what a report lacks here; None: nothing."""
    if find_spec("matplotlib") is not None:
        return None
    return (
        f"{REPORT} is not made, as matplotlib is not installed; pip install 'preflight-worker[report]', "
        "or set PREFLIGHT_REPORT=off"
    )
