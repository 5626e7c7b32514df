"""Requests for a report, which `child.py` renders."""

from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from calibration.result import CalibrationResult
from preflight.contract.spec import STRICT
from preflight.packages import how_to_install
from preflight.wire.configuration import ConfigField
from training.artifacts.model_dir import REPORT
from training.prediction import Prediction

PACKAGES: Final = ("matplotlib", "jinja2")


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Group:
    """The workers that trained a job together."""

    workers: int
    """Number of workers at the end of the training."""
    members: tuple[tuple[str, str, str], ...]
    """Name, container and samples a second alone of each that took part."""
    history: tuple[str, ...]
    """Sentences about what became of the group."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ReportRequest:
    """Report of a run, which is written next to the files of its model."""

    job_id: str
    artifact: Path
    """Directory of the model and of the page."""
    store: Path
    """The prepared data set."""
    why: str
    """Why the plan was chosen."""
    facts: dict[str, str]
    """Description of the container."""
    finding: CalibrationResult | None
    """Result of the calibration; None where nothing was measured."""
    prediction: Prediction | None
    """Prediction for the last plan of the training; None: there is none for that plan."""
    calibration_s: float
    """Wall time of choosing the plan, import of torch included."""
    training_s: float
    """Wall time of the training processes of this attempt."""
    config: tuple[ConfigField, ...] = ()
    """Every setting of the job."""
    losses: tuple[tuple[float, float], ...] = field(default=())
    """(epochs done, training loss) by window."""
    group: Group | None = None
    """The workers that trained together; None: one trained alone."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class CalibrationReportRequest:
    """Report of a calibration alone."""

    target: Path
    subject: str
    """Model and data set."""
    facts: dict[str, str]
    result: CalibrationResult


REQUEST: Final[TypeAdapter[ReportRequest | CalibrationReportRequest]] = TypeAdapter(
    ReportRequest | CalibrationReportRequest
)


def missing() -> str | None:
    """Return a sentence about the packages that a report lacks here, or None."""
    lacking = [name for name in PACKAGES if find_spec(name) is None]
    if not lacking:
        return None
    return (
        f"{REPORT} is not made, as {', '.join(lacking)} is not installed; {how_to_install('report')}, "
        "or set PREFLIGHT_REPORT=off"
    )
