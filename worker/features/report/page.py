"""Report of a run as one HTML page without scripts; every name is escaped."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from pydantic import ConfigDict, JsonValue
from pydantic.dataclasses import dataclass

from preflight import numbers
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.wire import StepProfile
from training.artifacts.metrics import EvaluationMetrics, evaluation_metrics
from training.artifacts.predictions import PREDICTIONS, read
from training.step.profiler import PHASES
from training.step.train_state import EpochDone
from worker.features.report import plots
from worker.features.report.calibration import calibration_section
from worker.features.report.forked import Fork
from worker.features.report.request import Group, ReportRequest
from worker.features.report.templates import render_template
from worker.features.report.test_set import section_of_test_set

MAX_EPOCHS: Final = 100
"""Epochs that are shown with the manifest."""
MIN_SHARE: Final = 1e-3
"""Share of the time below which a phase is left out."""
_READ: Final = ConfigDict(extra="ignore", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True, config=_READ)
class Metrics:
    """Metrics of a training, from its manifest."""

    test_accuracy: float
    test_loss: float
    macro_f1: float | None = None
    best_epoch: int
    stopped_early: bool
    train_seconds: float
    samples_per_s: float
    parameters: int | None = None
    profile: StepProfile | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_READ)
class Input:
    """Fields of the model's input that the page shows."""

    class_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, config=_READ)
class TrainedOn:
    """The data set of a training, from its manifest."""

    name: str
    train: int
    test: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_READ)
class TrainingRecord:
    """Fields of a manifest that the page shows."""

    spec: TrainSpec
    plan: Plan
    metrics: Metrics
    history: tuple[EpochDone, ...]
    input: Input = Input()
    dataset: TrainedOn | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes of imported data; none for others."""
        return self.input.class_names


def render(request: ReportRequest, manifest: Mapping[str, JsonValue], record: TrainingRecord) -> str:
    """Return the page about the model of this manifest, parsed as `record`.

    Raises:
        DatasetError: the data set's store cannot be read.
    """
    kept = request.artifact / PREDICTIONS
    found = evaluation_metrics(*read(kept)) if kept.is_file() else None
    predicted, result = request.prediction, request.finding
    tested = None if found is None else Fork(partial(section_of_test_set, found, request.store, record.class_names))
    return render_template(
        "run_page.html",
        title=f"{record.spec.model} on {record.spec.dataset}",
        job_id=request.job_id,
        headline=_headline(record, found),
        effort=_effort(record, request.group),
        group=request.group,
        config=request.config,
        learning=plots.learning(record.history, request.losses),
        learned=_learned(record),
        seconds=plots.seconds(_phases(request, record)),
        predicted=plots.prediction(record.history, predicted) if predicted else None,
        off=_off(request, record),
        why=request.why,
        section=calibration_section(result, request.facts) if result else None,
        manifest=_manifest(manifest),
        test_set=None if tested is None else tested.result(),  # last: the fork draws it meanwhile
    )


def _headline(record: TrainingRecord, found: EvaluationMetrics | None) -> str:
    wrong = "" if found is None else f", {found.samples - found.right:,} of {found.samples:,} samples wrong"
    f1 = record.metrics.macro_f1
    balanced = "" if f1 is None else f", macro F1 {numbers.share(f1)}"
    return f"{numbers.share(record.metrics.test_accuracy)} on the test set{balanced}{wrong}"


def _effort(record: TrainingRecord, group: Group | None) -> str:
    metrics, epochs = record.metrics, numbers.plural(len(record.history), "epoch")
    by = "" if group is None else f", by {numbers.plural(group.workers, 'worker')} at the end"
    trained = record.dataset
    by += f"; {metrics.parameters:,} parameters" if metrics.parameters is not None else ""
    by += f"; {trained.name}, SHA-256 {trained.sha256}" if trained is not None and trained.sha256 else ""
    return f"{epochs} in {numbers.seconds(metrics.train_seconds)}, {metrics.samples_per_s:,.0f} samples a second{by}"


def _learned(record: TrainingRecord) -> str:
    history, best = record.history, record.metrics.best_epoch
    by = "" if record.spec.metric == "accuracy" else " by macro F1"
    chosen = f" The weights are those of epoch {best}, the best on validation samples{by}."
    if history[0].val_acc is None:
        chosen = " The weights are those of the last epoch: nothing was held out."
    early = " It was stopped early, as more epochs no longer helped." if record.metrics.stopped_early else ""
    return f"Pale: the loss of each half second or so; dots: of a whole epoch.{chosen * (len(history) > 1)}{early}"


def _phases(request: ReportRequest, record: TrainingRecord) -> Sequence[tuple[str, float]]:
    """Return the seconds of each phase."""
    profile = record.metrics.profile
    parts: list[tuple[str, float]]
    if profile is not None:
        parts = [(phase, float(getattr(profile, f"{phase}_s"))) for phase in PHASES]
    else:
        trained = sum(done.train_seconds for done in record.history)
        parts = [("training", trained), ("validation", record.metrics.train_seconds - trained)]
    rest = request.training_s - sum(spent for _, spent in parts)
    listed = [("calibration", request.calibration_s), *parts, ("the rest", rest)]
    return [(name, spent) for name, spent in listed if spent > MIN_SHARE * sum(abs(each) for _, each in listed)]


def _off(request: ReportRequest, record: TrainingRecord) -> str:
    """Return how far the epochs were off their prediction."""
    predicted = request.prediction
    if predicted is None:
        return ""
    measured = [done.seconds for done in record.history]
    expected = [predicted.epoch_s + predicted.warm_s, *[predicted.epoch_s] * (len(measured) - 1)]
    off = sum(measured) / sum(expected) - 1 if sum(expected) > 0 else 0.0
    warm = f" The first epoch has {numbers.seconds(predicted.warm_s)} more, to warm up." if predicted.warm_s else ""
    return f"The epochs took {numbers.share(abs(off))} {'more' if off > 0 else 'less'} than predicted.{warm}"


def _manifest(manifest: Mapping[str, JsonValue]) -> str:
    history = manifest.get("history")
    shown = dict(manifest)
    if isinstance(history, list) and len(history) > MAX_EPOCHS:
        shown["history"] = f"of {len(history)} epochs: see manifest.json"
    return json.dumps(shown, indent=2, sort_keys=True, ensure_ascii=False)
