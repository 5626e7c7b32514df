"""Sweep: one knob after the other, each as long as it gains."""

from calibration.memory.model import Memory
from calibration.result import Knob
from calibration.search.baseline import RESTARTS
from calibration.search.budget import race_deadline, race_seconds
from calibration.search.evaluation import evaluate
from calibration.search.mutations import MUTATIONS
from calibration.search.progress import skip, skip_for_time
from calibration.search.run import SearchRun
from calibration.search.search_space import KNOBS, SearchState, Skipped
from calibration.search.timing import epoch_seconds
from training.config.plan import Plan


def knob_order(run: SearchRun) -> list[Knob]:
    """Return the knobs in order: the user's loader workers first, and threads beside a busy neighbour."""
    first: list[Knob] = ["loader"] if run.own.loader_workers else []
    first += ["threads"] if run.evidence[run.own].disturbed else []
    return [knob for knob in dict.fromkeys((*first, *KNOBS)) if knob in run.task.knobs]


def sweep_knob(run: SearchRun, knob: Knob, best: Plan, memory: Memory) -> Plan:
    """Turn one knob as long as it gains; return the best plan then."""
    if knob == "micro_batch":  # needs whole batches
        part, run.cut = run.cut, run.task.batch_size
        best = _sweep(run, knob, best, memory)
        run.cut = part
        return best
    return _sweep(run, knob, best, memory)


def _sweep(run: SearchRun, knob: Knob, best: Plan, memory: Memory) -> Plan:
    tried, start = {best}, best
    while True:
        # Each result may make the next plan needless; only halving continues from the plan that won.
        origin = best if knob == "micro_batch" else start
        turned = MUTATIONS[knob](origin, run.task.space, search_state(run, best, memory))
        candidate = next((each for each in turned if _plan_of(each) not in tried), None)
        if candidate is None:
            return best
        plan = _plan_of(candidate)
        tried.add(plan)
        if isinstance(candidate, Skipped):
            skip(run, knob, plan, candidate.why)
        elif run.failures > RESTARTS:
            skip_for_time(run, knob, plan, "too many processes were lost before it")
        elif run.backend.now() + race_seconds(run, best, plan) > race_deadline(run, best):
            skip_for_time(run, knob, plan, "time budget used up")
        elif evaluate(run, knob, best, plan):
            best = plan


def _plan_of(candidate: Plan | Skipped) -> Plan:
    return candidate.plan if isinstance(candidate, Skipped) else candidate


def search_state(run: SearchRun, best: Plan, memory: Memory) -> SearchState:
    """Return measurements of the best plan that decide what is worth a trial."""
    epoch_s = epoch_seconds(run, best)
    return SearchState(
        batch_size=run.task.batch_size, batch_statistics=run.batch_statistics,
        slow_weight_gradients=memory.slow_weight_gradients,
        fetch_share=run.evidence[best].fetch_share,
        validation_share=1 - run.task.steps_per_epoch * run.evidence[best].step_s / epoch_s,
        training_s=run.task.epochs * epoch_s,
        room_bytes=run.task.memory_bytes - max(
            run.evidence[best].peak_bytes, memory.fit.base_bytes + memory.fit.sample_bytes * best.micro_batch
        ),
        process_bytes=memory.fit.base_bytes, batch_bytes=run.task.batch_size * run.task.sample_bytes,
        most_samples=memory.most_samples,
        gained=run.gained,
    )  # fmt: skip
