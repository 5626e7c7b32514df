"""What the probabilities of a test set say of a model, counted by hand."""

import numpy as np
import pytest

from training.artifacts.metrics import BINS, WORST, evaluation_metrics

SURE = 0.96
"""In the last of 15 bins."""


def said(predicted: int, confidence: float) -> list[float]:
    return [confidence if label == predicted else (1 - confidence) / 2 for label in range(3)]


def test_classes_and_confusion_are_counted() -> None:
    """Rows are true classes; recall and precision are None where there is nothing to count."""
    told = [(0, 0), (0, 0), (0, 1), (1, 1)]
    found = evaluation_metrics(
        np.array([said(predicted, SURE) for _, predicted in told], dtype=np.float32),
        np.array([truth for truth, _ in told], dtype=np.uint8),
    )
    assert (found.samples, found.right) == (4, 3)
    assert found.confusion == ((2, 1, 0), (0, 1, 0), (0, 0, 0))
    recall = [each.recall for each in found.classes]
    assert recall == [pytest.approx(2 / 3), 1.0, None]
    assert [each.precision for each in found.classes] == [1.0, 0.5, None]
    (mistake,) = found.mistakes
    assert (mistake.sample, mistake.truth, mistake.predicted) == (2, 0, 1)
    assert mistake.confidence == pytest.approx(SURE)


def test_the_surest_mistakes_come_first() -> None:
    """And no more than are shown."""
    confidences = np.linspace(0.4, 0.9, 40)
    found = evaluation_metrics(
        np.array([said(1, confidence) for confidence in confidences], dtype=np.float32), np.zeros(40, dtype=np.uint8)
    )
    assert [mistake.sample for mistake in found.mistakes] == list(range(39, 39 - WORST, -1))


def test_the_calibration_error_is_that_of_guo_et_al() -> None:
    """Ten samples at 0.96 of which nine are right, and ten at 0.5 of which all are: half of 0.06 and half of 0.5."""
    confidence = [SURE] * 10 + [0.5] * 10
    truth = [0] * 9 + [1] + [0] * 10
    found = evaluation_metrics(
        np.array([said(0, each) for each in confidence], dtype=np.float32), np.array(truth, dtype=np.uint8)
    )
    assert found.calibration_error == pytest.approx((SURE - 0.9) / 2 + 0.5 / 2, abs=1e-6)
    held = [each for each in found.bins if each.samples]
    assert [(each.samples, each.accuracy) for each in held] == [(10, 1.0), (10, 0.9)]
    assert all(each.low < each.confidence <= each.high for each in held)


def test_a_confidence_at_the_border_of_two_bins_is_in_the_lower_one() -> None:
    """Bins are (low, high]; certainty is in the last one."""
    probabilities = np.array([[1.0, 0.0], [0.6, 0.4]], dtype=np.float32)
    found = evaluation_metrics(probabilities, np.zeros(2, dtype=np.uint8))
    assert [number for number, each in enumerate(found.bins) if each.samples] == [8, BINS - 1]
