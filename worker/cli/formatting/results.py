"""Result of `preflight train`, with its profile."""

from collections.abc import Sequence

from preflight.cli.formatting.text import columns, printable
from preflight.contract.confidence import Confidence
from preflight.events.plan_words import plan_line
from preflight.events.sentences import together
from preflight.numbers import about, duration, plural
from preflight.wire import StepProfile, TrainResult
from worker.cli.formatting.datasets import MAX_CLASSES, classes


def format_result(result: TrainResult) -> str:
    """Return a result, without its extras, as a few lines."""
    if result.test_accuracy is None:
        return f"{result.job_id} {result.status}"
    foreseen = (
        "no prediction" if result.predicted_epoch_s is None else f"predicted about {about(result.predicted_epoch_s)}"
    )
    steps = "" if result.train_steps is None else f"{plural(result.train_steps, 'step')}, "
    speed = f"{result.samples_per_s:,.0f} samples/s{together(result.workers)}"
    parent = result.parent
    lines = [
        ("test accuracy", f"{result.test_accuracy:.2%}"),
        ("macro F1", None if result.macro_f1 is None else f"{result.macro_f1:.2%}"),
        ("confidence", None if result.confidence is None else confidence_line(result.confidence)),
        ("started from", f"{parent.job_id} ({parent.model_sha256[:12]})" if parent else None),
        ("training", f"{duration(result.train_s or 0.0)}, {steps}{speed}"),
        ("epoch", f"took {duration(result.measured_epoch_s or 0.0)} ({foreseen})"),
        ("parameters", None if result.parameters is None else f"{result.parameters:,}"),
        ("plan", plan_line(result.plan) if result.plan else ""),
        ("model", result.artifact),
    ]
    text = _aligned(lines) + class_table(result)
    return f"{text}\n\n{profile_table(result.profile)}" if result.profile else text


def class_table(result: TrainResult) -> str:
    """Return precision, recall and F1 of each named class as a block of lines; empty for classes without names."""
    names, scores = result.class_names, (result.class_precision, result.class_recall, result.class_f1)
    if not names or not all(scores):
        return ""
    rows = [
        (printable(name), *("-" if share is None else f"{share:.1%}" for share in shares))
        for name, *shares in zip(names, *(each or () for each in scores), strict=False)
    ]
    more = f"\nand {classes(len(rows) - MAX_CLASSES)} more" if len(rows) > MAX_CLASSES else ""
    return f"\n\n{columns([('CLASS', 'PRECISION', 'RECALL', 'F1'), *rows[:MAX_CLASSES]])}{more}"


def confidence_line(found: Confidence) -> str:
    """Return how sure answers must be, and how many of those are wrong."""
    return (
        f"uncertain below {found.uncertain_below:.1%}: {found.uncertain_share:.1%} of {found.samples:,} "
        f"{found.measured_on} samples; {found.error_above:.2%} of the others are wrong"
    )


def format_extras(result: TrainResult) -> str:
    """Return the extras that were added to a result, one a line."""
    return _aligned([("onnx", result.onnx), ("report", result.report), ("uploaded", result.artifact_url)])


def _aligned(lines: Sequence[tuple[str, str | None]]) -> str:
    return "\n".join(f"{label:15}{value}" for label, value in lines if value is not None)


def profile_table(profile: StepProfile) -> str:
    """Return the time of each phase as aligned columns."""
    rows = [(phase, f"{1e3 * batch_s:.3f}", f"{share:.1%}") for phase, batch_s, share in profile.phases()]
    steps = plural(profile.steps, "step")
    whole = ("all", f"{1e3 * profile.average_batch_s:.3f}", f"of {profile.total_s:.2f} s in {steps}")
    return columns([("PHASE", "MS/STEP", "SHARE"), *rows, whole])
