"""The user's own plan where it is not the container's default: which is measured first, and for how long."""

from dataclasses import replace

import pytest
from support.calibration.simulated import MIB, OWN, Memoryless, Simulated, even, usual

from calibration.measure.backend import WorkerLost
from calibration.races.outpacing import HOPELESS
from calibration.result import CalibrationResult, Trial
from calibration.search.own_plan import OWN_SECONDS, plain_plan
from calibration.search.search import search
from calibration.space import Space
from calibration.task import Task
from preflight.contract.plan import Plan
from preflight.contract.verdicts import TrialKnob

SPACE = Space(threads=(2, 1), processors=2, bfloat16=True, tcmalloc=False, compiler=False)
TASK = Task(
    own=OWN, batch_size=128, steps_per_epoch=430, validation=5000, epochs=5, space=SPACE, memory_bytes=4096 * MIB,
    samples=16, exact=False, seconds=45.0,
)  # fmt: skip
MANY = replace(OWN, threads=99)


def thrashing(step_s: float) -> Simulated:
    """Return a machine on which a step of more threads than cores takes `step_s`."""

    def speed(plan: Plan) -> float:
        return step_s if plan.threads > 2 else usual(plan)

    return Simulated(speed, sample=lambda plan: speed(plan) / 384, starting=0.1)


def found(lab: Simulated, task: Task) -> CalibrationResult:
    return search(task, lab, Memoryless(), lambda _: None)


def of(finding: CalibrationResult, plan: Plan) -> Trial:
    return next(trial for trial in finding.trials if trial.plan == plan)


@pytest.mark.parametrize("step_s", [0.1, 1.5, 40.0])
def test_far_too_many_threads_cost_little(step_s: float) -> None:
    """A few steps, or none that ends in time, tell that they are slower; then the search goes on from the default."""
    lab, good = thrashing(step_s), thrashing(step_s)
    finding, without = found(lab, replace(TASK, own=MANY)), found(good, TASK)
    assert replace(finding.plan, threads=2) == finding.plan == without.plan
    assert (finding.trials[0].plan, finding.trials[0].knob) == (MANY, "own")
    assert "clearly slower than the container's default" in finding.trials[0].note
    assert lab.clock + lab.import_seconds <= good.clock + good.import_seconds + 5.0
    assert lab.asked[0][0] == OWN
    assert finding.confirmation is not None
    assert finding.confirmation.at_least is (step_s == 40.0)
    assert ("at least" in finding.why) is (step_s == 40.0)


@pytest.mark.parametrize("step_s", [0.1, 1.5])
def test_speed_is_told_against_the_users_own_plan(step_s: float) -> None:
    """However short its measurement was: it is what would have been trained with."""
    finding = found(thrashing(step_s), replace(TASK, own=MANY))
    assert finding.confirmation is not None
    assert finding.confirmation.proven
    assert finding.confirmation.ratio == pytest.approx(step_s / usual(finding.plan), rel=0.05)
    assert of(finding, OWN).knob == "default"
    assert of(finding, OWN).ratio == pytest.approx(step_s / usual(OWN), rel=0.05)


def test_the_default_is_kept_where_nothing_is_faster() -> None:
    """It is proven faster than the user's own plan by the steps of both, and needs no confirmation beside it."""
    lab = Simulated(lambda plan: even(plan) * (50 if plan.threads > 2 else 1))
    finding = found(lab, replace(TASK, own=MANY))
    assert finding.plan == OWN
    assert finding.confirmation is not None
    assert finding.confirmation.ratio == pytest.approx(50, rel=0.05)


def test_an_own_plan_that_is_not_hopeless_is_raced() -> None:
    """One thread of two is measured like any plan, and the default wins by pairs; a better one than it stays."""
    own = replace(OWN, threads=1)
    finding = found(Simulated(), replace(TASK, own=own))
    assert (of(finding, OWN).knob, of(finding, OWN).verdict) == ("default", "won")
    assert of(finding, own).steps > 3
    assert HOPELESS > 1.7
    lab = Simulated(lambda plan: 0.020 * plan.threads)
    finding = found(lab, replace(TASK, own=own))
    assert finding.plan.threads == 1
    assert of(finding, OWN).verdict in ("lost", "dropped")
    assert lab.asked[0][0] == OWN


@pytest.mark.parametrize("own", [OWN, replace(OWN, threads=1), MANY])
def test_a_process_that_is_killed_at_any_moment_costs_no_calibration(own: Plan) -> None:
    """Whatever is measured when one process is lost: there is a plan in the end."""

    def search_with_loss(at: int) -> int:
        lab = Simulated(starting=0.1)
        lab.fails = lambda _: WorkerLost("it was killed (signal 9)") if len(lab.ran) == at else None
        finding = found(lab, replace(TASK, own=own, epochs=30, shares=True))
        assert finding.prediction.epoch_s > 0
        return len(lab.ran)

    count = search_with_loss(0)
    assert count > 20
    for at in range(1, count + 1):
        search_with_loss(at)


def test_an_own_plan_that_hangs_is_ended() -> None:
    """Its process is ended after some seconds, and what is known is that it takes longer."""
    lab = thrashing(1e6)
    finding = found(lab, replace(TASK, own=MANY))
    assert f"{OWN_SECONDS:.0f} s without" in finding.trials[0].note
    assert finding.plan.threads == 2


def test_the_default_turns_only_what_may_be_turned() -> None:
    """It leaves the user's batches, and every part that calibration was not given."""
    own = replace(OWN, threads=99, micro_batch=64, eval_batch=100, loader_workers=4, prefetch_factor=2)
    both: tuple[TrialKnob, ...] = ("threads", "loader")
    plain = plain_plan(own, SPACE, both)
    assert plain == replace(OWN, micro_batch=64, eval_batch=100)
    assert plain_plan(own, SPACE, ()) == own
    assert plain_plan(replace(own, precision="bfloat16"), SPACE, both[1:]) == replace(
        own, precision="bfloat16", loader_workers=0, prefetch_factor=None
    )
