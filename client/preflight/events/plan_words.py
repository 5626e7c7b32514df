"""A plan in a few words, the same in the log, in the terminal and on the page."""

from preflight.contract.plan import DEFAULTS, PARTS, TYPES, Plan, words
from preflight.wire import PlanFields


def plan_words(plan: PlanFields | Plan) -> dict[str, str]:
    """Return each field of a plan in words, the threads first."""
    return {name: words(name).of(getattr(plan, name)) for name in sorted(TYPES, key=lambda name: name != "threads")}


def mentioned(plan: PlanFields | Plan, *knobs: str) -> list[str]:
    """Return the fields that the line of a plan has: threads, precision, changed defaults, and `knobs`."""
    also = {"threads", "precision", *(name for knob in knobs for name in PARTS.get(knob, ()))}
    return [
        name
        for name in plan_words(plan)
        if name in also or (name in DEFAULTS and getattr(plan, name) != DEFAULTS[name])
    ]


def plan_line(plan: PlanFields | Plan, *knobs: str) -> str:
    """Return a plan as people say it: 1 thread, float32."""
    texts = plan_words(plan)
    return ", ".join(texts[name] for name in mentioned(plan, *knobs))


def whole_plan_line(plan: PlanFields | Plan) -> str:
    """Return the line of a plan with memory format, allocator and micro-batch, too."""
    return plan_line(plan, *(name for name in TYPES if words(name).always))


def changes(before: Plan, after: Plan) -> str:
    """Return the fields of a plan that differ from `before`, in words."""
    old = plan_words(before)
    return ", ".join(text for name, text in plan_words(after).items() if text != old[name]) or "unchanged"
