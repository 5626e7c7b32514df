"""Response bodies of a comparison."""

from collections.abc import Mapping, Sequence

from preflight.wire import CalibrationWinner, JobState, TrainResult
from worker.web.models import ApiModel


class Curve(ApiModel):
    """A figure by epochs trained."""

    epochs: Sequence[float]
    values: Sequence[float]


class ComparedJob(ApiModel):
    """A job of a comparison."""

    state: JobState
    result: TrainResult | None = None
    settings: Mapping[str, object]
    """Field of the request, such as `plan.threads` -> its value, defaults and those of a recipe included; empty where
    Redis no longer has the request."""
    plan: CalibrationWinner | None = None
    """The newest `calibration_winner`: plan, its reason and its prediction."""
    plan_line: str | None = None
    """The plan in words."""
    plan_speed: str | None = None
    """Speed of the plan compared with the job's own, in words."""
    curves: Mapping[str, Curve]
    """`loss`, `accuracy`, `speed`, `val_loss` and `val_acc`."""


class Comparison(ApiModel):
    """Jobs side by side, in the order in which they were asked for."""

    jobs: Sequence[ComparedJob]
    differing: Sequence[str]
    """Settings that are not the same in all of them."""
