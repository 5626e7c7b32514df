"""A plan in a few words, the same in the log, in the terminal and on the page."""

from preflight.contract.plan import DEFAULTS, TYPES, Plan, words
from preflight.wire import PlanFields


def plan_words(plan: PlanFields | Plan) -> dict[str, str]:
    """Return each field of a plan in words, the threads first."""
    return {name: words(name).of(getattr(plan, name)) for name in sorted(TYPES, key=lambda name: name != "threads")}


def mentioned(plan: PlanFields | Plan) -> list[str]:
    """Return the fields that the line of a plan has: those of every plan, and what differs from a default."""
    return [name for name in plan_words(plan) if words(name).always or getattr(plan, name) != DEFAULTS[name]]


def plan_line(plan: PlanFields | Plan) -> str:
    """Return a plan on one line."""
    texts = plan_words(plan)
    return " ".join(texts[name] for name in mentioned(plan))


def changes(before: Plan, after: Plan) -> str:
    """Return the fields of a plan that differ from `before`, in words."""
    old = plan_words(before)
    return ", ".join(text for name, text in plan_words(after).items() if text != old[name]) or "unchanged"
