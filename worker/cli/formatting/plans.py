"""A plan as JSON, and a prediction in a few words."""

from typing import Final

from pydantic import TypeAdapter

from preflight.contract.plan import Plan
from preflight.numbers import duration, predicted
from training.prediction import Prediction

PLAN = TypeAdapter(Plan)
LEAST_S: Final = 0.005
"""Seconds below which a part of the prediction is not mentioned."""


def format_prediction(prediction: Prediction) -> str:
    """Return the predicted time of an epoch with its interval and parts."""
    validation_s, warm_s = prediction.validation_s, prediction.warm_s
    parts = [
        *([f"including {duration(validation_s)} of validation"] if validation_s >= LEAST_S else []),
        *([f"{duration(warm_s)} more in the first one"] if warm_s >= LEAST_S else []),
    ]
    return ", ".join([predicted(prediction.epoch_s, prediction.low_s, prediction.high_s, " an epoch"), *parts])
