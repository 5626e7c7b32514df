"""Evaluation metrics: confusion matrix, precision, recall, F1 and calibration of the confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

WORST: Final = 25
"""Most errors that are shown."""
BINS: Final = 15
"""Number of bins, as in Guo et al. 2017."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A misclassified test sample."""

    sample: int
    truth: int
    predicted: int
    confidence: float
    """Probability of the predicted class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassScore:
    """Figures of one class."""

    label: int
    samples: int
    right: int
    predicted: int
    """Samples predicted as this class."""

    @property
    def recall(self) -> float | None:
        """Share of its samples that are correct; None without samples."""
        return self.right / self.samples if self.samples else None

    @property
    def precision(self) -> float | None:
        """Share of the predictions of this class that are correct; None without predictions."""
        return self.right / self.predicted if self.predicted else None

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall, 2 TP / (2 TP + FP + FN); None without samples and predictions."""
        both = self.samples + self.predicted
        return 2 * self.right / both if both else None


def macro_f1(classes: Sequence[ClassScore]) -> float:
    """Return the mean F1 of the classes that have one, as sklearn.metrics.f1_score(average="macro") does."""
    defined = [score.f1 for score in classes if score.f1 is not None]
    return math.fsum(defined) / len(defined)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """The samples whose confidence lies in (low, high]."""

    low: float
    high: float
    samples: int
    confidence: float
    """Mean confidence of the samples; 0 without samples."""
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMetrics:
    """Metrics of a model on a test set."""

    samples: int
    right: int
    confusion: tuple[tuple[int, ...], ...]
    """Samples by true class, then by predicted one."""
    classes: tuple[ClassScore, ...]
    mistakes: tuple[Mistake, ...]
    """Most confident errors first, at most `WORST`."""
    bins: tuple[Bin, ...]
    calibration_error: float
    """Expected calibration error: the mean of |accuracy - confidence| over the bins, weighted by their samples."""


def evaluation_metrics(probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.integer]) -> EvaluationMetrics:
    """Return the metrics of probabilities [N, classes] for true labels [N], N >= 1.

    The calibration error is ECE, equation 3 of Guo et al. 2017, "On Calibration of Modern Neural Networks"
    (arXiv:1706.04599), over bins of equal width.
    """
    import numpy as np

    truth, predicted, confidence = labels.astype(np.int64), probabilities.argmax(1), probabilities.max(1)
    classes = probabilities.shape[1]
    confusion = np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)
    wrong = np.flatnonzero(predicted != truth)
    worst = wrong[np.argsort(-confidence[wrong], kind="stable")][:WORST]
    bins = _bins(confidence, predicted == truth)
    return EvaluationMetrics(
        samples=len(truth),
        right=int(confusion.trace()),
        confusion=tuple(tuple(map(int, row)) for row in confusion),
        classes=tuple(
            ClassScore(
                label=label, samples=int(confusion[label].sum()), right=int(confusion[label, label]),
                predicted=int(confusion[:, label].sum()),
            )
            for label in range(classes)
        ),
        mistakes=tuple(
            Mistake(
                sample=int(sample), truth=int(truth[sample]), predicted=int(predicted[sample]),
                confidence=float(confidence[sample]),
            )
            for sample in worst
        ),
        bins=bins,
        calibration_error=sum(each.samples * abs(each.accuracy - each.confidence) for each in bins) / len(truth),
    )  # fmt: skip


def _bins(confidence: npt.NDArray[np.float32], right: npt.NDArray[np.bool_]) -> tuple[Bin, ...]:
    import numpy as np

    index = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    counts = np.bincount(index, minlength=BINS)
    sure = np.bincount(index, weights=confidence, minlength=BINS)
    hits = np.bincount(index, weights=right, minlength=BINS)
    return tuple(
        Bin(
            low=number / BINS, high=(number + 1) / BINS, samples=int(count),
            confidence=float(sure[number] / max(1, count)), accuracy=float(hits[number] / max(1, count)),
        )
        for number, count in enumerate(counts)
    )  # fmt: skip
