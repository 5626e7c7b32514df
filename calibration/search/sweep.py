"""Sweep: one knob after the other, as long as measuring is expected to pay."""

from calibration.memory.model import Memory
from calibration.races.baseline import RESTARTS
from calibration.races.budget import race_deadline
from calibration.races.evaluation import evaluate
from calibration.races.progress import skip, skip_for_time
from calibration.races.racing import race_seconds
from calibration.races.run import SearchRun
from calibration.races.timing import epoch_seconds
from calibration.search.mutations import mutations
from calibration.space import SearchState, Skipped
from calibration.worth.expectation import expect, is_affordable
from preflight.contract.plan import KNOBS, KnobName, Plan
from preflight.contract.verdicts import TrialKnob


def sweep(run: SearchRun, best: Plan, memory: Memory) -> Plan:
    """Try each knob, in their order but for the first ones; return the best plan then."""
    for knob in dict.fromkeys((*_first_knobs(run, best), *KNOBS)):
        if knob in run.task.knobs:
            best = sweep_knob(run, knob, best, memory)
    return best


def _first_knobs(run: SearchRun, best: Plan) -> list[KnobName]:
    """Return the knobs to decide first: loader workers disturb other races, a neighbour makes threads wait."""
    first: list[KnobName] = ["loader"] if best.loader_workers else []
    return first + (["threads"] if run.evidence[run.reference].disturbed else [])


def sweep_knob(run: SearchRun, knob: KnobName, best: Plan, memory: Memory) -> Plan:
    """Turn one knob as long as it gains; return the best plan then."""
    if knob == "micro_batch":  # needs whole batches
        part, run.cut = run.cut, run.task.batch_size
        best = _sweep(run, knob, best, memory)
        run.cut = part
        return best
    return _sweep(run, knob, best, memory)


def _sweep(run: SearchRun, knob: KnobName, best: Plan, memory: Memory) -> Plan:
    tried, start = {best, run.own, run.reference}, best
    while True:
        # Each result may make the next plan needless; only halving continues from the plan that won.
        origin = best if knob == "micro_batch" else start
        turned = mutations(knob)(origin, run.space, search_state(run, best, memory))
        candidate = next((each for each in turned if _plan_of(each) not in tried), None)
        if candidate is None:
            return best
        plan = _plan_of(candidate)
        tried.add(plan)
        if isinstance(candidate, Skipped):
            skip(run, knob, plan, candidate.why)
        elif _try(run, knob, best, plan, memory):
            best = plan


def _try(run: SearchRun, knob: TrialKnob, best: Plan, plan: Plan, memory: Memory) -> bool:
    """Measure a plan where that is worth its time; return whether it won."""
    kept = knob != "compile" and run.records.lookup(best, plan) is not None
    expected = expect(run, knob, best, plan, search_state(run, best, memory))
    run.expected[plan] = max(0.0, expected.saving_s), expected.cost_s
    if not kept and not expected.worth:
        run.left_out = True
        skip(run, knob, plan, expected.refusal)
    elif not kept and not is_affordable(run, best, expected):
        run.left_out = True
        skip(run, knob, plan, f"testing it costs {expected.cost_s:.1f} s, and enough was spent without a gain")
    elif run.failures > RESTARTS:
        skip_for_time(run, knob, plan, "too many processes were lost before it")
    elif run.backend.now() + race_seconds(run, best, plan) > race_deadline(run, best):
        skip_for_time(run, knob, plan, "time budget used up")
    else:
        return evaluate(run, knob, best, plan)
    return False


def _plan_of(candidate: Plan | Skipped) -> Plan:
    return candidate.plan if isinstance(candidate, Skipped) else candidate


def search_state(run: SearchRun, best: Plan, memory: Memory) -> SearchState:
    """Return measurements of the best plan that decide which plans are worth a trial."""
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
