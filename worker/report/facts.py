"""Facts about a choice of plan: container, training, cache."""

from typing import Final

from calibration.choose import PlanChoice
from training.config.spec import TrainSpec
from training.system.resources import Resources
from worker.report.numbers import format_age, plural

MIB: Final = 1 << 20


def facts(choice: PlanChoice, spec: TrainSpec, resources: Resources) -> dict[str, str]:
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
