"""Earlier findings on processors like this one, and the whole plan among them that is worth a race at once."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from calibration.cache.plan_cache import CachedPlan, PlanCache
from calibration.cache.signature import Signature, processor_label
from calibration.result import CalibrationResult
from calibration.space import Space
from preflight.contract.plan import KNOBS, PARTS, KnobName, Plan, changed

MOST: Final = 16
"""Most findings that are read: the nearest ones."""

WITH: Final[Mapping[KnobName, tuple[str, ...]]] = {"loader": ("prefetch_factor",)}
"""Knob -> fields of another knob that have no meaning without it."""


def take(knob: KnobName, own: Plan, won: Plan) -> Plan:
    """Return `own` with one knob's fields from `won`; those of a knob that is not portable stay."""
    names = [name for name, part in PARTS[knob].items() if part.portable]
    return changed(own, **{name: getattr(won, name) for name in (*names, *WITH.get(knob, ()))}) if names else own


def earlier_findings(cache: PlanCache, key: Signature) -> tuple[CalibrationResult, ...]:
    """Return the findings on processors of this model, the same network first, then the newest."""
    try:
        entries = [entry.plan for entry in cache.entries() if entry.plan is not None]
    except OSError:
        return ()
    alike = [entry for entry in entries if entry.what.get("processor") == processor_label(key)]
    alike.sort(key=lambda entry: (not _same(entry, key, "model"), not _same(entry, key, "cores"), entry.age_s))
    return tuple(entry.finding for entry in alike[:MOST])


def _same(entry: CachedPlan, key: Signature, fact: str) -> bool:
    return entry.what.get(fact) == {**key.workload, **key.limits}.get(fact)


def whole_plan(
    own: Plan, earlier: Sequence[CalibrationResult], space: Space, knobs: Collection[KnobName]
) -> Plan | None:
    """Return the user's plan with the knobs of the nearest proven finding; None where that changes fewer than two."""
    for finding in earlier:
        if finding.confirmation is None or not finding.confirmation.proven:
            continue
        plan, taken = own, 0
        for knob in ("precision", "allocator", "threads", "affinity", "interop"):
            candidate = take(knob, plan, finding.plan) if knob in knobs else plan
            if candidate != plan and _available(candidate, space):
                plan, taken = candidate, taken + 1
        return plan if taken > 1 else None
    return None


def plain_plan(own: Plan, space: Space, knobs: Collection[KnobName]) -> Plan:
    """Return the container's default for the user's batches: one thread for each whole core, the rest plain."""
    plain = Plan(threads=space.threads[0], micro_batch=own.micro_batch)
    plan = own
    for knob in KNOBS:
        plan = take(knob, plan, plain) if knob in knobs else plan
    return plan


def _available(plan: Plan, space: Space) -> bool:
    return (
        (plan.allocator != "tcmalloc" or space.tcmalloc)
        and (plan.precision != "bfloat16" or space.bfloat16)
        and plan.threads in space.threads
    )
