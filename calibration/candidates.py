"""Which plans are worth a measurement: one knob after the other, in the order of expected gain.

The order follows the size of the effects on the machines measured so far: first the allocator (which the
measuring child turns itself, because it can be turned only once), then precision with memory format, then
threads.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from training.plan import Plan
from training.resources import Resources

Knob = Callable[[Plan], list[Plan]]
"""From the best plan so far to those that differ from it in this knob alone."""


def thread_counts(resources: Resources) -> tuple[int, ...]:
    """Return the thread counts worth trying: whole cores, the quota rounded up, half the cores, one."""
    available = max(1, len(resources.affinity))
    ceiling = available if resources.quota is None else min(available, math.ceil(resources.quota))
    counts = (resources.cores, ceiling, resources.cores // 2, 1)
    return tuple(dict.fromkeys(count for count in counts if count >= 1))


def knobs(threads: tuple[int, ...]) -> tuple[Knob, ...]:
    """Return the knobs in the order in which they are turned."""

    def precision_and_format(best: Plan) -> list[Plan]:
        plans = [
            replace(best, precision="bfloat16", memory_format="channels_last"),
            replace(best, memory_format="channels_last"),
        ]
        return [plan for plan in dict.fromkeys(plans) if plan != best]

    def thread_count(best: Plan) -> list[Plan]:
        return [replace(best, threads=count) for count in threads if count != best.threads]

    return precision_and_format, thread_count
