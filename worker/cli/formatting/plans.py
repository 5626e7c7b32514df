"""A plan as JSON, and a prediction in a few words."""

from typing import Final

from pydantic import TypeAdapter

from preflight.contract.plan import Plan
from training.prediction import Prediction

PLAN = TypeAdapter(Plan)
LEAST_S: Final = 0.005
"""Seconds; less is 0.00."""


def format_prediction(prediction: Prediction) -> str:
    """Return the predicted time of an epoch with its interval and parts."""
    parts = [
        *([f"including {prediction.validation_s:.2f} s of validation"] if prediction.validation_s >= LEAST_S else []),
        *([f"{prediction.warm_s:.2f} s more in the first one"] if prediction.warm_s >= LEAST_S else []),
    ]
    interval = f"{prediction.epoch_s:.2f} s per epoch ({prediction.low_s:.2f} to {prediction.high_s:.2f})"
    return ", ".join([interval, *parts])
