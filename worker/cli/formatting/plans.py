"""Plans and predictions in a few words."""

from dataclasses import asdict

from pydantic import TypeAdapter

from training.config.plan import Plan
from training.loop.prediction import Prediction
from worker.report.numbers import plural
from worker.wire import PlanFields

PLAN = TypeAdapter(Plan)


def plan_line(plan: PlanFields | Plan) -> str:
    """Return a plan on one line."""
    words = [
        plural(plan.threads, "thread"), plan.precision, plan.memory_format, _allocator(plan.allocator),
        f"micro-batch {plan.micro_batch}",
        *(["pinned"] if plan.affinity == "pinned" else []),
        *([plural(plan.loader_workers, "loader worker")] if plan.loader_workers else []),
        *(["compiled"] if plan.compile else []),
        *(["on cuda"] if plan.device == "cuda" else []),
    ]  # fmt: skip
    return " ".join(words)


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
            return _allocator(allocator)
        case "precision" | "memory_format" | "affinity", str(word):
            return word
    return f"{name.replace('_', '-')} {value}"


def _allocator(name: str) -> str:
    return name if "malloc" in name else f"{name} malloc"


def format_prediction(prediction: Prediction) -> str:
    """Return the predicted time of an epoch with its interval and parts."""
    parts = [
        *([f"including {prediction.validation_s:.2f} s of validation"] if prediction.validation_s else []),
        *([f"{prediction.warm_s:.2f} s more in the first one"] if prediction.warm_s else []),
    ]
    interval = f"{prediction.epoch_s:.2f} s per epoch ({prediction.low_s:.2f}-{prediction.high_s:.2f})"
    return ", ".join([interval, *parts])
