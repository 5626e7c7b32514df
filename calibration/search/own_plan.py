"""The user's own plan where it is not the container's default: that one is measured first.

A plan of far more threads than cores, or of more than others leave processors for, may take seconds for a step, so that
it is measured no longer than needed.
"""

from collections.abc import Collection
from typing import Final

from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.memory.model import Memory
from calibration.races.baseline import OVERDUE, measure_baseline, measure_default, record_own
from calibration.races.budget import steps_of_race, training_seconds
from calibration.races.evaluation import evaluate
from calibration.races.outpacing import is_outpaced
from calibration.races.progress import Tried, end_trial
from calibration.races.run import PlanStats, SearchRun
from calibration.races.timing import measure, validate
from calibration.space import Space
from preflight.contract.plan import PARTS, KnobName, Plan, changed
from preflight.statistics import compare

OWN_SECONDS: Final = 3.0
"""Most time for single steps of the user's own plan; two of 99 threads on two processors take that long."""
OWN_SHARE: Final = 0.05
"""Share of a short training for that, where others hold processors: one or two steps show how long they take."""


def measure_own_plan(run: SearchRun, memory: Memory) -> tuple[Plan, Memory]:
    """Measure the user's own plan, after the container's default where that is another one; return the faster one.

    Where others hold processors, the default has threads for those that are free.
    """
    default = plain_plan(run.own, run.space, run.task.knobs)
    if default == run.own or not measure_default(run, default, memory):
        return measure_baseline(run, memory)
    began = run.backend.now()
    seconds = _own_seconds(run, default)
    deadline = began + seconds
    run.backend.limit(began + OWN_SECONDS)
    run.records.attempt(run.own)
    try:
        hopeless = is_outpaced(run, run.own, run.evidence[default].step_s, deadline)
        if not hopeless:
            _measure_own(run)
    except (WorkerLost, PlanFailed) as error:
        run.records.mark_ok(run.own)
        if isinstance(error, PlanFailed) or not error.late:
            run.evidence.pop(run.own, None)
            run.backend.limit(run.task.seconds + OVERDUE)
            return measure_baseline(run, memory)
        hopeless = True
        if run.own not in run.evidence:  # its first two steps did not end in time
            run.evidence[run.own] = PlanStats(OWN_SECONDS / 2 / run.part, [])
    return (_leave_own if hopeless else _race_own)(run, default, memory, began), memory


def plain_plan(own: Plan, space: Space, knobs: Collection[KnobName]) -> Plan:
    """Return the container's default for the user's batches: one thread for each whole core, the rest plain."""
    plain = Plan(threads=space.threads[0], micro_batch=own.micro_batch)
    names = [name for knob in knobs for name, part in PARTS[knob].items() if part.portable]
    names += ["prefetch_factor"] if "loader" in knobs else []  # which has no meaning without workers
    return changed(own, **{name: getattr(plain, name) for name in names})


def _own_seconds(run: SearchRun, default: Plan) -> float:
    """Return how long single steps of the user's own plan may take."""
    if not run.crowded or run.task.thorough or run.task.exact:
        return OWN_SECONDS
    return min(OWN_SECONDS, OWN_SHARE * training_seconds(run, run.evidence[default].step_s))


def _leave_own(run: SearchRun, default: Plan, memory: Memory, began: float) -> Plan:
    """Continue from the default; the user's own plan stays the baseline of all ratios."""
    own, known = run.evidence[run.own], run.evidence[default]
    own.sample_s = (known.sample_s or 0.0) * own.step_s / known.step_s
    run.backend.limit(run.task.seconds + OVERDUE)
    run.noise = own.disturbed
    count = len(own.blocks)
    steps = "1 step" if count == 1 else f"{count} steps" if count else f"{OWN_SECONDS:.0f} s without two whole steps"
    record_own(run, memory, began, f"stopped after {steps}: clearly slower than {_default_name(run, default)}")
    comparison = compare([(block, known.blocks[0]) for block in own.blocks or [(own.step_s,)]])
    why = "others hold processors" if run.crowded else "one thread for each whole core"
    end_trial(run, Tried("default", default, began), "won", why, run.own, comparison)
    run.default, run.against_own[default] = default, comparison
    return default


def _default_name(run: SearchRun, default: Plan) -> str:
    if not run.crowded:
        return "the container's default"
    threads = "1 thread" if default.threads == 1 else f"{default.threads} threads"
    return f"{threads}, as others hold processors"


def _measure_own(run: SearchRun) -> None:
    """Measure the user's own plan as long as any plan of a race; raises `WorkerLost` and `PlanFailed`."""
    step_s = run.evidence[run.own].step_s
    run.backend.limit(run.task.seconds + OVERDUE)
    measure(run, run.own, steps_of_race(run, step_s), like_s=step_s)
    validate(run, run.own)


def _race_own(run: SearchRun, default: Plan, memory: Memory, began: float) -> Plan:
    record_own(run, memory, began)
    return default if evaluate(run, "default", run.own, default) else run.own
