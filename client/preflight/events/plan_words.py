"""A plan in a few words, the same in the log, in the terminal and on the page."""

from preflight.contract.plan import Plan
from preflight.numbers import plural
from preflight.wire import PlanFields


def plan_line(plan: PlanFields | Plan) -> str:
    """Return a plan on one line."""
    words = [
        plural(plan.threads, "thread"), plan.precision, plan.memory_format, allocator_words(plan.allocator),
        f"micro-batch {plan.micro_batch}",
        *(["pinned"] if plan.affinity == "pinned" else []),
        *([plural(plan.loader_workers, "loader worker")] if plan.loader_workers else []),
        *([f"prefetch {plan.prefetch_factor}"] if plan.prefetch_factor else []),
        *(["weight gradients as products"] if plan.weight_gradients == "products" else []),
        *(["compiled"] if plan.compile else []),
        *(["on cuda"] if plan.device == "cuda" else []),
    ]  # fmt: skip
    return " ".join(words)


def allocator_words(name: str) -> str:
    """Return the name of an allocator with its noun."""
    return name if "malloc" in name else f"{name} malloc"
