"""Outpacing: a plan that is many times slower than another is known to be so after a few single steps.

Next to a busy neighbour, or with far more threads than processors, a step may take seconds. The quick plan is measured
first, so that the slow one costs no more than these steps.
"""

import math
import statistics
from typing import Final

from calibration.races.run import SearchRun
from calibration.races.timing import measure
from preflight.contract.plan import Plan
from preflight.statistics import MIN_PAIRS

HOPELESS: Final = 3.0
"""Factor by which a step must be slower for single steps to tell: no noise does that."""
CROWDED: Final = 1.25
"""The same for more threads than others leave processors for: these are expected to be slower."""


def is_outpaced(run: SearchRun, slow: Plan, quick_s: float, deadline: float) -> bool:
    """Measure single steps of `slow`; return whether they are clearly slower than steps of `quick_s` seconds.

    Ends after `MIN_PAIRS` steps, or when the next one would end after `deadline` (as the backend counts). Their median
    counts: next to a busy neighbour a single step may be lucky.

    Raises:
        WorkerLost, PlanFailed: its process was lost, or it does not run.
    """
    first = len(run.evidence[slow].blocks) if slow in run.evidence else 0
    while True:
        measure(run, slow, 1, like_s=math.inf)
        known = run.evidence[slow]
        steps = [step for block in known.blocks[first:] for step in block]
        if len(steps) >= MIN_PAIRS or run.backend.now() + max(steps) * run.part > deadline:
            times = CROWDED if slow.threads > max(run.space.threads) else HOPELESS
            return statistics.median(steps) >= times * quick_s
