"""Test-set section of a report: confusion matrix, errors, reliability."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
from markupsafe import Markup
from PIL import Image

from preflight import numbers
from training.artifacts.metrics import BINS, ClassScore, EvaluationMetrics, Mistake
from training.data.dataset_store import read_test_images
from worker.features.report import plots

MAX_IMAGE_SIDE: Final = 112
"""Pixels; larger images are shrunk."""


@dataclass(frozen=True, slots=True)
class Png:
    """An image of the page: base64 of a PNG file, and its size in pixels."""

    data: str
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSetSection:
    """Words, rows and plots about the predictions of the test set."""

    names: tuple[str, ...]
    """Names of the classes."""
    confusion: Markup
    confused: str
    classes: tuple[tuple[str, ...], ...]
    mistakes: tuple[tuple[Mistake, Png], ...]
    reliability: Markup
    calibration_error: str


def section_of_test_set(found: EvaluationMetrics, store: Path, classes: Sequence[str] = ()) -> TestSetSection:
    """Return the section; images of the errors come from the data set's store.

    `classes` are the names of the classes; without names, their numbers are shown.
    """
    names = classes or [str(score.label) for score in found.classes]
    return TestSetSection(
        names=tuple(names), confusion=plots.confusion(found, classes), confused=_confused(found, names),
        classes=tuple(_class(found, score, names) for score in found.classes),
        mistakes=tuple(_with_images(found.mistakes, store)), reliability=plots.reliability(found),
        calibration_error=(
            f"Expected calibration error {numbers.share(found.calibration_error)}: the mean distance of the dots from "
            f"the dashed line, weighted by samples, over {BINS} bins of equal width (ECE, equation 3 of Guo et al. "
            "2017, “On Calibration of Modern Neural Networks”, arXiv:1706.04599). On the line, 90 % of the predictions "
            "with a confidence of 90 % are correct; below it the model is overconfident."
        ),
    )  # fmt: skip


def _confused(found: EvaluationMetrics, names: Sequence[str]) -> str:
    pairs = sorted(
        (-count, truth, predicted)
        for truth, row in enumerate(found.confusion) for predicted, count in enumerate(row)
        if count and truth != predicted
    )[:3]  # fmt: skip
    if not pairs:
        return "All test samples are correct."
    listed = ", ".join(f"{names[truth]} taken for {names[predicted]} ({-count:,})" for count, truth, predicted in pairs)
    return f"Most often: {listed}. Grey: correct."


def _class(found: EvaluationMetrics, score: ClassScore, names: Sequence[str]) -> tuple[str, ...]:
    others = [(count, label) for label, count in enumerate(found.confusion[score.label]) if label != score.label]
    most, label = max(others, key=lambda other: (other[0], -other[1]))
    return (
        names[score.label], f"{score.samples:,}", _share(score.recall), _share(score.precision), _share(score.f1),
        f"{names[label]} ({most:,})" if most else numbers.NONE,
    )  # fmt: skip


def _share(value: float | None) -> str:
    return numbers.NONE if value is None else numbers.share(value)


def _with_images(mistakes: Sequence[Mistake], store: Path) -> Sequence[tuple[Mistake, Png]]:
    images = read_test_images(store, [mistake.sample for mistake in mistakes]) if mistakes else ()
    return [(mistake, _png(image)) for mistake, image in zip(mistakes, images, strict=True)]


def _png(pixels: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]") -> Png:
    """Return a uint8 image [C, H, W]: in colour with three channels, else its first one in grey."""
    image = Image.fromarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0])
    image.thumbnail((MAX_IMAGE_SIDE, MAX_IMAGE_SIDE))
    file = BytesIO()
    image.save(file, "PNG", optimize=True)
    return Png(base64.b64encode(file.getvalue()).decode(), image.width, image.height)
