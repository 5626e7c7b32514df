"""Temperature and threshold of a model's confidence, from samples whose truth is known."""

import numpy as np
import numpy.typing as npt
import pytest

from training.artifacts.confidence import LEAST_SAMPLES, measure_confidence, tempered


def answers(temperature: float, count: int = 20_000) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return probabilities that are too sure, or not sure enough, by such a temperature, and labels."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (count, 5))
    exponentials = np.exp(logits)
    true = exponentials / exponentials.sum(1, keepdims=True)
    labels = (rng.random((count, 1)) > true.cumsum(1)).sum(1).clip(0, 4)
    shown = np.exp(logits / temperature)
    return (shown / shown.sum(1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("shown", [0.4, 1.0, 2.5])
def test_the_temperature_undoes_what_makes_a_model_too_sure_or_too_unsure(shown: float) -> None:
    probabilities, labels = answers(shown)
    found = measure_confidence(probabilities, labels, "validation")
    assert found is not None
    assert found.temperature == pytest.approx(1 / shown, rel=0.05)
    scaled = tempered(probabilities, found.temperature)
    assert scaled.max(1).mean() == pytest.approx((scaled.argmax(1) == labels).mean(), abs=0.01)
    assert (scaled.argmax(1) == probabilities.argmax(1)).all()


def test_the_threshold_says_what_it_costs() -> None:
    """Share of uncertain answers and error rate of the others are those of the samples."""
    probabilities, labels = answers(1)
    found = measure_confidence(probabilities, labels, "validation")
    assert found is not None
    sure = tempered(probabilities, found.temperature).max(1)
    certain = sure >= found.uncertain_below
    assert found.uncertain_share == pytest.approx(1 - certain.mean(), abs=1e-3)
    assert found.uncertain_share == pytest.approx(0.1, abs=0.001)  # of a model that errs this often no more are
    assert found.error_above == pytest.approx((probabilities.argmax(1) != labels)[certain].mean(), abs=1e-3)


def test_nearly_all_errors_of_a_good_model_are_uncertain() -> None:
    rng = np.random.default_rng(1)
    sure = rng.uniform(0.9, 1, 5_000)
    sure[:40] = np.linspace(0.5, 0.8, 40)
    labels = np.zeros(5_000, dtype=np.int64)
    labels[:40] = 1
    probabilities = np.stack([sure, 1 - sure], 1).astype(np.float32)
    found = measure_confidence(probabilities, labels, "training")
    assert found is not None
    assert found.uncertain_share == pytest.approx(0.0076, abs=2e-4)
    assert found.error_above == pytest.approx(2 / 4962, abs=1e-5)


def test_a_model_without_an_error_and_too_few_samples() -> None:
    probabilities = np.tile(np.array([[0.9, 0.1]], dtype=np.float32), (LEAST_SAMPLES, 1))
    labels = np.zeros(LEAST_SAMPLES, dtype=np.int64)
    found = measure_confidence(probabilities, labels, "validation")
    assert found is not None
    assert (found.uncertain_share, found.error_above) == (0, 0)
    assert measure_confidence(probabilities[1:], labels[1:], "validation") is None


def test_a_probability_of_zero_has_a_logarithm() -> None:
    assert np.isfinite(tempered(np.array([[1, 0]], dtype=np.float32), 0.5)).all()
