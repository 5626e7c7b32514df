"""The report of a run as one HTML page: what was learned, what is mistaken, how sure, how fast, and why so.

Nothing comes from outside it and nothing in it is a script; whatever a user named is escaped.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image
from pydantic import ConfigDict, JsonValue
from pydantic.dataclasses import dataclass

from training.artifacts.metrics import BINS, ClassScore, Mistake, Outcome, outcome
from training.artifacts.predictions import PREDICTIONS, read
from training.config.plan import Plan
from training.config.spec import TrainSpec
from training.data.dataset_store import read_test_images
from training.loop.profiler import PHASES
from training.loop.train_state import EpochDone
from worker.report import calibration, plots
from worker.report import numbers as figures
from worker.report.calibration import section
from worker.report.markup import Markup, join, table, tag, text
from worker.report.request import ReportRequest
from worker.wire import StepProfile

STYLE: Final = Path(__file__).parent / "templates" / "report.css"
LARGEST_IMAGE: Final = 112
"""Pixels of a side; larger images are made smaller."""
MOST_EPOCHS: Final = 100
"""Whose figures are shown with the manifest."""
LEAST_SHARE: Final = 1e-3
"""Of the time: a part that took less is left out."""
_READ: Final = ConfigDict(extra="ignore", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True, config=_READ)
class Metrics:
    """What a manifest says of how a training ended."""

    test_accuracy: float
    test_loss: float
    best_epoch: int
    stopped_early: bool
    train_seconds: float
    samples_per_s: float
    profile: StepProfile | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_READ)
class Told:
    """What a manifest says of a run, as far as it is drawn."""

    spec: TrainSpec
    plan: Plan
    metrics: Metrics
    history: tuple[EpochDone, ...]


def render(request: ReportRequest, manifest: Mapping[str, JsonValue], told: Told) -> str:
    """Return the page about the model whose manifest this is, parsed as `told`.

    Raises:
        DatasetError: the data set's store cannot be read.
    """
    kept = request.artifact / PREDICTIONS
    found = outcome(*read(kept)) if kept.is_file() else None
    return calibration.page(
        f"{request.job_id}: {told.spec.model} on {told.spec.dataset}",
        _headline(request, told, found),
        section("Learning", _figure(plots.learning(told.history, request.losses), _learned(told))),
        *(_outcome(found, request.store) if found else [section("Mistakes", tag("p", _UNKNOWN))]),
        section("Where the time went", _figure(plots.seconds(_parts(request, told)), _PARTS)),
        section("Prediction against reality", *_prediction(request, told)),
        *_calibration(request),
        section("The manifest", _manifest(manifest)),
        style=STYLE.read_text(encoding="utf-8"),
    )


_UNKNOWN: Final = "The test set is too large to keep what the model says of each sample."
_PARTS: Final = (
    "Wall time of this attempt. The rest is the start of the process, the import of torch, the final test, and saving."
)


def _headline(request: ReportRequest, told: Told, found: Outcome | None) -> Markup:
    metrics, spec = told.metrics, told.spec
    wrong = "" if found is None else f", {found.samples - found.right:,} of {found.samples:,} samples wrong"
    effort = (
        f"{figures.counted(len(told.history), 'epoch')} in {figures.seconds(metrics.train_seconds)}, "
        f"{metrics.samples_per_s:,.0f} samples a second"
    )
    return tag(
        "header",
        tag("p", "Training ", tag("bdi", request.job_id), class_="eyebrow"),
        tag("h1", f"{figures.share(metrics.test_accuracy)} on the test set{wrong}"),
        tag("p", tag("strong", f"{spec.model} on {spec.dataset}"), f", {effort}", class_="lead"),
    )  # fmt: skip


def _figure(drawn: Markup, *caption: str) -> Markup:
    return tag("figure", drawn, tag("figcaption", *caption), class_="drawn")


# What was learned


def _learned(told: Told) -> str:
    history, best = told.history, told.metrics.best_epoch
    chosen = "" if len(history) == 1 else f" The weights are those of epoch {best}, the best on validation samples."
    if history[0].val_acc is None:
        chosen = "" if len(history) == 1 else " The weights are those of the last epoch: nothing was held out."
    early = " It was stopped early, as more epochs no longer helped." if told.metrics.stopped_early else ""
    return f"Pale: the loss of each half second or so; dots: of a whole epoch.{chosen}{early}"


# What is mistaken, and how sure the model is


def _outcome(found: Outcome, store: Path) -> Sequence[Markup]:
    return (
        section(
            "Who is taken for whom",
            _figure(plots.confusion(found), _confused(found)),
            table(
                "How each class is recognized: recall, which is the accuracy of the class, is the share of its samples "
                "that are recognized; precision the share of what is taken for it that is of it",
                ("Class", "Samples", "Recall", "Precision", "Most often taken for"),
                [_class(found, each) for each in found.classes],
                classes=("n", "n", "n", "n", "why"),
            ),
        ),
        section("The surest mistakes", _mistakes(found.mistakes, store)),
        section(
            "How sure it is, and how rightly",
            _figure(
                plots.reliability(found),
                f"Expected calibration error {figures.share(found.calibration_error)}: the mean distance of the dots "
                f"from the dashed line, weighted by samples, over {BINS} bins of equal width (ECE, equation 3 of Guo "
                "et al. 2017, “On Calibration of Modern Neural Networks”, arXiv:1706.04599). On the line, of what is "
                "said with a confidence of 90 %, nine in ten are right; below it the model is too sure.",
            ),
        ),
    )


def _confused(found: Outcome) -> str:
    pairs = sorted(
        (-count, truth, predicted)
        for truth, row in enumerate(found.confusion) for predicted, count in enumerate(row)
        if count and truth != predicted
    )[:3]  # fmt: skip
    if not pairs:
        return "No test sample is taken for another class."
    listed = ", ".join(f"{truth} taken for {predicted} ({-count:,})" for count, truth, predicted in pairs)
    return f"Most often: {listed}. Grey: rightly recognized."


def _class(found: Outcome, score: ClassScore) -> tuple[str, ...]:
    others = [(count, label) for label, count in enumerate(found.confusion[score.label]) if label != score.label]
    most, label = max(others, key=lambda other: (other[0], -other[1]))
    return (
        str(score.label), f"{score.samples:,}", _share(score.recall), _share(score.precision),
        f"{label} ({most:,})" if most else figures.NONE,
    )  # fmt: skip


def _share(value: float | None) -> str:
    return figures.NONE if value is None else figures.share(value)


def _mistakes(mistakes: Sequence[Mistake], store: Path) -> Markup:
    if not mistakes:
        return tag("p", "There are none.")
    images = read_test_images(store, [mistake.sample for mistake in mistakes])
    items = (
        tag(
            "li", _image(image, f"Test sample {mistake.sample}"),
            tag("p", tag("b", str(mistake.truth)), " taken for ", tag("b", str(mistake.predicted))),
            tag("small", f"{100 * mistake.confidence:.1f}{figures.THIN}% sure"),
            tag("small", f"no. {mistake.sample:,}"),
        )
        for mistake, image in zip(mistakes, images, strict=True)
    )  # fmt: skip
    return tag("ol", *items, class_="mistakes")


def _image(pixels: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]", words: str) -> Markup:
    """Return an image uint8 [C, H, W] as an element: in colours where it has three channels, else its first one."""
    image = Image.fromarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0])
    image.thumbnail((LARGEST_IMAGE, LARGEST_IMAGE))
    file = BytesIO()
    image.save(file, "PNG", optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    size = f'width="{image.width}" height="{image.height}"'
    return Markup(f'<img alt="{text(words)}" {size} src="data:image/png;base64,{data}">')


# How fast it was


def _parts(request: ReportRequest, told: Told) -> Sequence[tuple[str, float]]:
    """Return what the time was spent on, in seconds."""
    profile = told.metrics.profile
    parts: list[tuple[str, float]]
    if profile is not None:
        parts = [(phase, float(getattr(profile, f"{phase}_s"))) for phase in PHASES]
    else:
        trained = sum(done.train_seconds for done in told.history)
        parts = [("training", trained), ("validation", told.metrics.train_seconds - trained)]
    rest = request.training_s - sum(spent for _, spent in parts)
    listed = [("calibration", request.calibration_s), *parts, ("the rest", rest)]
    return [(name, spent) for name, spent in listed if spent > LEAST_SHARE * sum(abs(each) for _, each in listed)]


def _prediction(request: ReportRequest, told: Told) -> Sequence[Markup]:
    predicted = request.prediction
    if predicted is None:
        return (tag("p", f"Nothing was predicted: {request.why}."),)
    measured = [done.seconds for done in told.history]
    expected = [predicted.epoch_s + predicted.warm_s, *[predicted.epoch_s] * (len(measured) - 1)]
    off = sum(measured) / sum(expected) - 1 if sum(expected) > 0 else 0.0
    warm = f" The first epoch has {figures.seconds(predicted.warm_s)} more, to warm up." if predicted.warm_s else ""
    words = f"The epochs took {figures.share(abs(off))} {'more' if off > 0 else 'less'} than predicted.{warm}"
    return (_figure(plots.prediction(told.history, predicted), words),)


# Why so


def _calibration(request: ReportRequest) -> Sequence[Markup]:
    finding = request.finding
    if finding is None:
        return (section("Calibration", tag("p", f"Nothing was measured for the plan: {request.why}.")),)
    return (
        section(
            "Calibration",
            tag("p", tag("strong", calibration.winner(finding)), ". ", f"Confidence {finding.confidence}. ",
                finding.why),
        ),
        *calibration.sections(finding, request.facts),
    )  # fmt: skip


def _manifest(manifest: Mapping[str, JsonValue]) -> Markup:
    history = manifest.get("history")
    shown = dict(manifest)
    if isinstance(history, list) and len(history) > MOST_EPOCHS:
        shown["history"] = f"of {len(history)} epochs: see manifest.json"
    written = json.dumps(shown, indent=2, sort_keys=True, ensure_ascii=False)
    return join(
        tag("p", "What lies beside the model as ", tag("code", "manifest.json"), "."),
        tag("details", tag("summary", "Show it"), tag("pre", written)),
    )
