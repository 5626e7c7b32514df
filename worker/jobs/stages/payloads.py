"""Event payloads: the fields of plans, trials, calibrations and containers that events show."""

import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from pydantic import JsonValue

from calibration.choose import PlanChoice
from calibration.memory.model import cnn_samples
from calibration.result import BatchAdvice, CalibrationResult, Confirmation
from calibration.task import memory_for_training
from calibration.verdicts import batch_sentence
from preflight.container.resources import Resources
from preflight.contract.plan import TYPES, Plan
from preflight.contract.spec import TrainSpec
from preflight.contract.verdicts import ADOPTED
from preflight.numbers import MIB, format_age, plural
from preflight.wire import CalibrationTrial, TrainJob
from worker.events.plan_words import reasons

ADVISED_FIELDS = ("micro_batch", "ratio", "low", "high", "samples_per_s", "epoch_s", "peak_bytes")
"""Figures of the advised batch that its event shows."""


def plan_payload(plan: Plan) -> dict[str, JsonValue]:
    """Return the fields of a plan that events show."""
    return asdict(plan)


def trial_payload(spec: TrainSpec, trial: dict[str, JsonValue], budget_s: float) -> dict[str, JsonValue]:
    """Return the fields of `calibration_trial` for a trial with those of `calibration.result.Trial`.

    `budget_s` are the seconds that the calibration may take.
    """
    plan, step_s, at, took = trial["plan"], trial.get("step_s"), trial.get("at"), trial.get("seconds")
    kind, slowest_s = _slowest(trial.get("slowest_s"))
    ended = at + took if isinstance(at, float) and isinstance(took, float) else 0.0
    return {
        **({name: plan[name] for name in TYPES} if isinstance(plan, dict) else {}),
        "left_s": max(0.0, budget_s - ended),
        "won": trial.get("verdict") in ADOPTED,
        "samples_per_s": spec.batch_size / step_s if isinstance(step_s, float) and step_s > 0 else None,
        **{name: value for name, value in trial.items() if name in CalibrationTrial.model_fields},
        f"{kind}_s": slowest_s,
    }


def _slowest(found: JsonValue | tuple[str, float]) -> tuple[str, float | None]:
    """Return the name, `p95` or `max`, and the seconds of the slowest steps."""
    match found:
        case (str(kind), float(seconds)):
            return kind, seconds
    return "p95", None


def probe_payload(probe: dict[str, JsonValue], limit_bytes: int) -> dict[str, JsonValue]:
    """Return the fields of `memory_probe` for a probe with those of `calibration.result.MemoryProbe`."""
    return {**probe, "limit_bytes": limit_bytes}


def calibration_payload(choice: PlanChoice, found: CalibrationResult) -> dict[str, JsonValue]:
    """Return the fields of `calibration_winner` that come from the measurement `found`."""
    low_s, high_s = choice.predicted_interval_s or (None, None)
    return {
        "predicted_low_s": low_s,
        "predicted_high_s": high_s,
        "confidence": found.confidence,
        "doubt": found.doubt,
        "reasons": reasons(found),
        "skipped": sum(not trial.ran for trial in found.trials) if choice.source == "measured" else 0,
        **_confirmation_payload(found.confirmation if choice.plan == found.plan else None),
        "max_feasible": found.memory.max_feasible if found.memory else None,
    }


def _confirmation_payload(found: Confirmation | None) -> dict[str, JsonValue]:
    if found is None:
        return {}
    return {
        "ratio": found.ratio, "ratio_low": found.low, "ratio_high": found.high, "proven": found.proven,
        "fresh_process": found.fresh_process, "at_least": found.at_least,
    }  # fmt: skip


def advice_payload(advice: BatchAdvice) -> dict[str, JsonValue]:
    """Return the fields of `batch_advice`."""
    own = advice.trials[0]
    best = next((trial for trial in advice.trials if trial.batch_size == advice.advised), None)
    measured = [trial.batch_size for trial in advice.trials if trial.outcome == "measured"]
    return {
        "batch_size": own.batch_size,
        "samples_per_s": own.samples_per_s,
        "epoch_s": own.epoch_s,
        "peak_bytes": own.peak_bytes,
        "budget_bytes": advice.budget_bytes,
        "largest_measured": max(measured, default=own.batch_size),
        "advised": advice.advised,
        **({f"advised_{name}": asdict(best)[name] for name in ADVISED_FIELDS} if best else {}),
        "message": batch_sentence(advice),
    }


def asked_options(job: TrainJob) -> dict[str, JsonValue]:
    """Return the options of a calibration that a job asks for, which its checkpoints keep."""
    return {
        "force_calibration": job.force_calibration, "calibration_samples": job.calibration_samples,
        "calibration_seconds": job.calibration_seconds,
        "calibration_knobs": list(job.calibration_knobs) if job.calibration_knobs else None,
    }  # fmt: skip


def versions_payload() -> dict[str, JsonValue]:
    """Return the fields of `job_started` that say which versions train."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = None
    return {
        "preflight_version": version("preflight-worker"), "torch_version": torch,
        "python_version": platform.python_version(),
    }  # fmt: skip


def container_facts(found: Resources) -> dict[str, JsonValue]:
    """Return the facts about the container that manifests and checkpoints keep."""
    return {
        "cores": found.cores, "quota": found.quota, "memory_bytes": found.memory_bytes,
        "cores_source": found.cores_source, "memory_source": found.memory_source,
    }  # fmt: skip


def choice_facts(choice: PlanChoice, spec: TrainSpec, resources: Resources) -> dict[str, str]:
    """Return container, training and cache of a choice: the head of an explanation and of a report."""
    quota = "no quota" if resources.quota is None else f"quota {resources.quota:g}"
    age = "" if choice.cache_age_s is None else f", measured {format_age(choice.cache_age_s)} ago"
    epochs = plural(spec.epochs, "epoch")
    return {
        "cpu": f"{plural(resources.cores, 'core')}, {quota} ({resources.cores_source})",
        "memory limit": f"{resources.memory_bytes / MIB:,.0f} MiB ({resources.memory_source})",
        "training": f"{spec.model} on {spec.dataset}, {epochs}, batch {spec.batch_size}",
        "cache": f"{choice.cache}{age}",
    }


def resources_payload(found: Resources) -> dict[str, JsonValue]:
    """Return the fields of `resource_limits`, an event and a log record of a starting worker."""
    share = f"; one of {found.shares} equal shares" if found.shares > 1 else ""
    return {
        "cpu_cores": found.cores,
        "quota": found.quota,
        "memory_mib": found.memory_bytes >> 20,
        "threads": found.cores,
        "loader_workers": 0,
        "largest_batch": cnn_samples(memory_for_training(found)),
        "source": f"cpu: {found.cores_source}; memory: {found.memory_source}{share}",
    }
