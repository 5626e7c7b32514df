"""What the probabilities of a test set say of a model, counted by hand."""

import warnings

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_recall_fscore_support

from training.artifacts.metrics import BINS, WORST, EvaluationMetrics, evaluation_metrics, macro_f1

SURE = 0.96
"""In the last of 15 bins."""


def metrics_of(truths: list[int], predictions: list[int], confidences: list[float]) -> EvaluationMetrics:
    """Return the metrics of samples of three classes, of which the others share what is left of the confidence."""
    probabilities = [
        [confidence if label == predicted else (1 - confidence) / 2 for label in range(3)]
        for predicted, confidence in zip(predictions, confidences, strict=True)
    ]
    return evaluation_metrics(np.array(probabilities, dtype=np.float32), np.array(truths, dtype=np.uint8))


def test_classes_and_confusion_are_counted() -> None:
    """Rows are true classes; recall and precision are None where there is nothing to count."""
    found = metrics_of([0, 0, 0, 1], [0, 0, 1, 1], [SURE] * 4)
    assert (found.samples, found.right) == (4, 3)
    assert found.confusion == ((2, 1, 0), (0, 1, 0), (0, 0, 0))
    recall = [each.recall for each in found.classes]
    assert recall == [pytest.approx(2 / 3), 1.0, None]
    assert [each.precision for each in found.classes] == [1.0, 0.5, None]
    assert [each.f1 for each in found.classes] == [pytest.approx(0.8), pytest.approx(2 / 3), None]
    assert macro_f1(found.classes) == pytest.approx((0.8 + 2 / 3) / 2)
    (mistake,) = found.mistakes
    assert (mistake.sample, mistake.truth, mistake.predicted) == (2, 0, 1)
    assert mistake.confidence == pytest.approx(SURE)


def test_the_surest_mistakes_come_first() -> None:
    """And no more than are shown."""
    found = metrics_of([0] * 40, [1] * 40, np.linspace(0.4, 0.9, 40).tolist())
    assert [mistake.sample for mistake in found.mistakes] == list(range(39, 39 - WORST, -1))


def test_the_calibration_error_is_that_of_guo_et_al() -> None:
    """Ten samples at 0.96 of which nine are right, and ten at 0.5 of which all are: half of 0.06 and half of 0.5."""
    found = metrics_of([0] * 9 + [1] + [0] * 10, [0] * 20, [SURE] * 10 + [0.5] * 10)
    assert found.calibration_error == pytest.approx((SURE - 0.9) / 2 + 0.5 / 2, abs=1e-6)
    held = [each for each in found.bins if each.samples]
    assert [(each.samples, each.accuracy) for each in held] == [(10, 1.0), (10, 0.9)]
    assert all(each.low < each.confidence <= each.high for each in held)


def test_a_confidence_at_the_border_of_two_bins_is_in_the_lower_one() -> None:
    """Bins are (low, high]; certainty is in the last one."""
    probabilities = np.array([[1.0, 0.0], [0.6, 0.4]], dtype=np.float32)
    found = evaluation_metrics(probabilities, np.zeros(2, dtype=np.uint8))
    assert [number for number, each in enumerate(found.bins) if each.samples] == [8, BINS - 1]


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_figures_of_classes_are_those_of_scikit_learn(classes: int) -> None:
    """On random predictions of which some classes have none, and some have no samples."""
    random = np.random.default_rng(classes)
    labels = random.integers(0, classes, 300)
    probabilities = random.dirichlet(np.ones(classes), 300).astype(np.float32)
    predicted = probabilities.argmax(1)
    found = evaluation_metrics(probabilities, labels).classes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes without predictions
        expected = precision_recall_fscore_support(labels, predicted, labels=range(classes), zero_division=0)
    for name, figures in zip(("precision", "recall", "f1"), expected, strict=False):
        assert [getattr(score, name) or 0.0 for score in found] == pytest.approx([*figures])
    assert macro_f1(found) == pytest.approx(f1_score(labels, predicted, average="macro"))
