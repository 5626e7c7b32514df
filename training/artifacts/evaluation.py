"""The model on the test set, for the page: `evaluation.json` with confusion matrix and pictured errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from preflight.pictures.png import png
from training.artifacts.metrics import Mistake, evaluation_metrics, macro_f1

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

EVALUATION: Final = "evaluation.json"
MAX_ERRORS: Final = 12
MAX_CLASSES: Final = 30
"""Most classes; a larger confusion matrix is in the report alone."""


def evaluation_json(
    probabilities: npt.NDArray[np.float32], labels: npt.NDArray[np.uint8], images: npt.NDArray[np.uint8],
    names: Sequence[str] = (),
) -> bytes:  # fmt: skip
    """Return the file of probabilities [N, classes], true labels [N] and images [N, C, H, W], N >= 1.

    `names` are those of the classes; without them the classes have their numbers alone.
    """
    found = evaluation_metrics(probabilities, labels)

    def pictured(mistake: Mistake) -> dict[str, object]:
        sample = mistake.sample
        return {
            "sample": sample, "truth": mistake.truth, "predicted": mistake.predicted,
            "confidence": mistake.confidence, "truth_confidence": float(probabilities[sample, mistake.truth]),
            "png": base64.b64encode(png(images[sample])).decode(),
        }  # fmt: skip

    content = {
        "samples": found.samples, "right": found.right, "macro_f1": macro_f1(found.classes),
        "classes": [(each.samples, each.predicted, each.right) for each in found.classes],
        "names": [*names] or None,
        "confusion": found.confusion if len(found.confusion) <= MAX_CLASSES else None,
        "errors": [pictured(mistake) for mistake in found.mistakes[:MAX_ERRORS]],
    }  # fmt: skip
    return json.dumps(content).encode()
