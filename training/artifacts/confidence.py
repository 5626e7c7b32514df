"""Calibration of a model's confidence: a temperature, and the probability below which an answer is uncertain.

Logits divided by one temperature, which minimises the cross entropy of samples that were not trained on, give
probabilities that say how often they are right (Guo et al. 2017, "On Calibration of Modern Neural Networks",
arXiv:1706.04599).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from preflight.contract.confidence import Confidence

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LEAST_SAMPLES: Final = 100
"""Least number of samples: fewer say nothing about rare errors."""
CAUGHT: Final = 0.95
"""Share of the errors whose answers are to be uncertain."""
MOST_UNCERTAIN: Final = 0.1
"""Largest share of all answers that may be uncertain for that."""
LOWEST, HIGHEST = 0.05, 20.0
"""Bounds of a temperature."""
TURNS: Final = 16
"""Steps of the bisection: the logarithm of the temperature is known to 5e-5."""
LEAST: Final = 1e-30
"""Least probability whose logarithm is taken."""


def tempered(probabilities: npt.NDArray[np.float32], temperature: float) -> npt.NDArray[np.float32]:
    """Return the probabilities [N, classes] of the same logits divided by `temperature`."""
    import numpy as np

    logits = np.log(np.maximum(probabilities, LEAST, dtype=np.float64)) / temperature
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    scaled: npt.NDArray[np.float32] = (exponentials / exponentials.sum(1, keepdims=True)).astype(np.float32)
    return scaled


def measure_confidence(
    probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.integer],
    measured_on: Literal["validation", "training"],
) -> Confidence | None:  # fmt: skip
    """Return the confidence of probabilities [N, classes] at temperature 1 for labels [N].

    None: there are too few samples, or the model diverged, which is found when it is scored.
    """
    import numpy as np

    if len(labels) < LEAST_SAMPLES or not np.isfinite(probabilities).all():
        return None
    temperature = _temperature(probabilities, labels)
    scaled = tempered(probabilities, temperature)
    sure, wrong = scaled.max(1), scaled.argmax(1) != labels
    order = np.argsort(sure, kind="stable")
    # The lowest threshold under which enough errors lie; an answer at it is certain.
    found = int(np.searchsorted(np.cumsum(wrong[order]), CAUGHT * wrong.sum())) + 1 if wrong.any() else 0
    below = min(found, int(MOST_UNCERTAIN * len(labels)))
    threshold = float(sure[order[below]])
    certain = sure >= threshold
    return Confidence(
        temperature=temperature, uncertain_below=min(1.0, threshold),
        uncertain_share=float(1 - certain.mean()), error_above=float(wrong[certain].mean()),
        samples=len(labels), measured_on=measured_on,
    )  # fmt: skip


def _temperature(probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.integer]) -> float:
    """Return the temperature of the least cross entropy, by bisection: its derivative changes its sign there alone."""
    import numpy as np

    logits = np.log(np.maximum(probabilities, LEAST, dtype=np.float64))
    truth = logits[np.arange(len(labels)), labels]

    def is_too_low(temperature: float) -> bool:
        """Whether the cross entropy falls while the temperature grows."""
        weights = np.exp(logits / temperature)
        return float(((weights * logits).sum(1) / weights.sum(1) - truth).mean()) > 0.0

    low, high = np.log(LOWEST), np.log(HIGHEST)
    for _ in range(TURNS):
        middle = (low + high) / 2
        if is_too_low(np.exp(middle)):
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))
