"""Facts about a choice of plan: container, training, cache; and about a group of workers."""

from collections.abc import Sequence

from calibration.choose import PlanChoice
from preflight.container.resources import Resources
from preflight.contract.spec import TrainSpec
from preflight.numbers import MIB, format_age, plural
from preflight.wire import GroupEvent, GroupFormed, GroupMeasured
from worker.report.request import Group


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


def _cores(count: float) -> str:
    return plural(int(count), "core") if count.is_integer() else f"{count:g} cores"


def group_facts(events: Sequence[GroupEvent]) -> Group | None:
    """Return the group that the events of an attempt tell of; None where there was none."""
    containers: dict[str, str] = {}
    speeds: dict[str, str] = {}
    for event in events:
        match event:
            case GroupFormed():
                sizes = zip(event.members, event.cores, event.memory_mib, strict=False)
                containers |= {name: f"{_cores(cores)}, {memory:,} MiB" for name, cores, memory in sizes}
            case GroupMeasured():
                speeds |= {name: f"{speed:,.0f}" for name, speed in zip(event.members, event.speeds, strict=False)}
    names = dict.fromkeys(name for event in events for name in event.members)
    if not names:
        return None
    return Group(
        workers=next((event.workers for event in reversed(events) if not isinstance(event, GroupMeasured)), 1),
        members=tuple((name, containers.get(name, ""), speeds.get(name, "")) for name in names),
        history=tuple(event.message for event in events),
    )
