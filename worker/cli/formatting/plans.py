"""Plans and predictions in a few words."""

from dataclasses import asdict

from pydantic import TypeAdapter

from training.config.plan import Plan
from training.loop.prediction import Prediction
from worker.events.plan_words import allocator_words
from worker.report.numbers import plural

PLAN = TypeAdapter(Plan)


def changes(before: Plan, after: Plan) -> str:
    """Return the fields of a plan that differ from `before`."""
    old = asdict(before)
    changed = {name: value for name, value in asdict(after).items() if value != old[name]}
    return ", ".join(_change(name, value) for name, value in changed.items()) or "unchanged"


def _change(name: str, value: object) -> str:
    match name, value:
        case "threads" | "loader_workers", int(number):
            return plural(number, name.replace("_", " ")[:-1])
        case "compile", bool(on):
            return "compiled" if on else "not compiled"
        case "allocator", str(allocator):
            return allocator_words(allocator)
        case "weight_gradients", "products":
            return "weight gradients as matrix products"
        case "precision" | "memory_format" | "affinity", str(word):
            return word
    return f"{name.replace('_', '-')} {value}"


def format_prediction(prediction: Prediction) -> str:
    """Return the predicted time of an epoch with its interval and parts."""
    parts = [
        *([f"including {prediction.validation_s:.2f} s of validation"] if prediction.validation_s else []),
        *([f"{prediction.warm_s:.2f} s more in the first one"] if prediction.warm_s else []),
    ]
    interval = f"{prediction.epoch_s:.2f} s per epoch ({prediction.low_s:.2f}-{prediction.high_s:.2f})"
    return ", ".join([interval, *parts])
