"""Searches beside others that hold processors: what is measured first, what counts, and what is kept."""

import json
import math
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from support.calibration.simulated import MIB, OWN, Memoryless, Simulated, usual

from calibration.cache.plan_cache import ENTRY, SCHEMA, CachedPlan
from calibration.measure.backend import WorkerLost
from calibration.measure.protocol import Measure, Measured, Probed
from calibration.races.outpacing import CROWDED
from calibration.result import CalibrationResult, Trial
from calibration.search.own_plan import OWN_SECONDS
from calibration.search.search import search
from calibration.space import Space
from calibration.task import Task
from preflight.contract.plan import Plan

SPACE = Space(threads=(2, 1), processors=2, bfloat16=True, tcmalloc=False, compiler=False)
TASK = Task(
    own=OWN, batch_size=128, steps_per_epoch=430, validation=5000, epochs=1, space=SPACE, memory_bytes=4096 * MIB,
    samples=16, exact=False, seconds=45.0,
)  # fmt: skip


@dataclass
class Crowded(Simulated):
    """A laboratory on two processors, one of which a neighbour holds: two threads wait for each other."""

    slower: float = 30.0
    """How many times as long a step of two threads takes."""
    free: int | None = 1
    """Processors that the kernel's counters show as free; None: it has none."""
    late_after: int | None = None
    """Measurements of a renewed process after which each step of two threads hangs; None: never."""
    measured_anew: int = field(default=0, init=False)

    def _step(self, plan: Plan) -> float:
        hangs = self.late_after is not None and self.renewed and self.measured_anew > self.late_after
        seconds = self.part * self.speed(plan) * (self.slower if plan.threads > 1 else 1.0)
        self._wait(1e6 if hangs and plan.threads > 1 else seconds)
        return seconds

    def measure(self, order: Measure) -> Measured:
        self.measured_anew += bool(self.renewed)
        return super().measure(order)

    def probe(self, plan: Plan) -> Probed:
        return replace(super().probe(plan), free=self.free)


@dataclass
class Slowing(Crowded):
    """A laboratory whose neighbour takes more of the processors once the first plan was measured, and never evenly."""

    noise: float = 0.1
    later: float = 2.0
    """How many times as long a step takes then."""

    def _step(self, plan: Plan) -> float:
        uneven = math.exp(self.random.gauss(0, self.noise))
        seconds = self.part * self.speed(plan) * (self.slower if plan.threads > 1 else 1.0)
        seconds *= self.later * uneven if self.blocks(replace(OWN, threads=1)) else 1.0
        self._wait(seconds)
        return seconds


class HangsInThirdPair(Simulated):
    """A laboratory that does not answer in the third pair of a race with bfloat16."""

    def measure(self, order: Measure) -> Measured:
        if order.plan.precision == "bfloat16" and self.blocks(order.plan) == 2 and not self.renewed:
            self.clock = self.deadline
            raise WorkerLost("did not answer in time", late=True)
        return super().measure(order)


def found(lab: Simulated, task: Task = TASK) -> CalibrationResult:
    return search(task, lab, Memoryless(), lambda _: None)


def of(finding: CalibrationResult, plan: Plan) -> Trial:
    return next(trial for trial in finding.trials if trial.plan == plan)


@pytest.mark.parametrize("slower", [3.0, 30.0, 1000.0])
def test_one_thread_is_measured_first_where_others_hold_a_processor(slower: float) -> None:
    """Whatever two threads take, the search costs a few seconds, and its winner is one thread."""
    lab, quiet = Crowded(slower=slower, disturbed=lambda _: True), Simulated()
    finding = found(lab)
    assert lab.asked[0][0] == replace(OWN, threads=1)
    assert (finding.plan.threads, finding.plan.precision) == (1, "bfloat16")
    assert "clearly slower than 1 thread, as others hold processors" in finding.trials[0].note
    assert finding.confirmation is not None
    assert finding.confirmation.low > CROWDED
    found(quiet)
    assert lab.clock < quiet.clock * 3 + OWN_SECONDS
    assert (finding.confidence, finding.doubt, finding.decided) == ("low", "the machine was busy", True)


@pytest.mark.parametrize("seed", range(8))
def test_a_plan_that_is_faster_in_its_pairs_stays_though_the_machine_has_become_slower(seed: int) -> None:
    """Its steps take longer than those of the plan before it took alone, when the machine had more to give."""
    space = replace(SPACE, bfloat16=False)
    lab = Slowing(disturbed=lambda _: True, random=Random(seed))  # noqa: S311 - dice
    finding = found(lab, replace(TASK, space=space))
    channels_last = of(finding, replace(OWN, threads=1, memory_format="channels_last"))
    assert channels_last.ratio is not None
    assert (finding.plan.memory_format == "channels_last") == (channels_last.ratio > 1.02)


def test_two_threads_come_back_where_the_neighbour_leaves() -> None:
    """The prediction says how many are worth a trial then, though one thread was the default."""
    assert found(Crowded()).prediction.threads_alone == 2
    assert found(Simulated()).prediction.threads_alone is None


def test_a_processor_that_others_seem_to_hold_costs_no_good_plan() -> None:
    """Others were at work only while the process began: both plans are raced, and two threads stay."""
    finding = found(Crowded(slower=1.0))
    assert finding.plan.threads == 2
    assert of(finding, replace(OWN, threads=1)).verdict in ("lost", "dropped", "level")


def test_without_the_kernels_counters_the_own_plan_is_measured_first() -> None:
    """The race for threads finds one thread all the same."""
    lab = Crowded(free=None, disturbed=lambda _: True)
    finding = found(lab)
    assert lab.asked[0][0] == OWN
    assert finding.plan.threads == 1


def test_a_confirmation_that_hangs_keeps_the_plan_that_the_races_support() -> None:
    """The own plan, which they show to be thirty times slower, is never what is left; and the finding is decided."""
    long = replace(TASK, epochs=1000)
    lab = Crowded(free=None, disturbed=lambda _: True, late_after=0)
    finding = found(lab, long)
    assert lab.renewed
    assert (finding.plan.threads, finding.confidence, finding.decided) == (1, "low", True)


def test_a_confirmation_of_a_small_gain_that_hangs_decides_nothing() -> None:
    """The own plan stays, and the next job measures again."""
    lab = Crowded(slower=1.9, free=None, late_after=0)
    finding = found(lab, replace(TASK, epochs=1000, knobs=frozenset({"threads"})))
    assert lab.renewed
    assert (finding.plan, finding.decided) == (OWN, False)
    assert "could not be confirmed" in finding.why
    assert finding.prediction.raced_step_s == pytest.approx(usual(replace(OWN, threads=1)))
    assert found(Simulated()).prediction.raced_step_s is None


def test_what_was_measured_before_a_hang_counts() -> None:
    """Pairs that came to their end are compared: a race that hangs in its third pair has a verdict by two."""
    finding = found(HangsInThirdPair())
    trial = next(trial for trial in finding.trials if trial.knob == "precision")
    assert trial.ratio is not None
    assert trial.verdict == "won"


def test_a_finding_without_the_new_fields_can_be_read() -> None:
    """Findings of 0.25.1 lack `decided` and `raced_step_s`."""
    entry = CachedPlan(schema=SCHEMA, signature="s", created=0.0, what={}, finding=found(Simulated()))
    stored = json.loads(ENTRY.dump_json(entry))
    del stored["finding"]["decided"], stored["finding"]["prediction"]["raced_step_s"]
    assert ENTRY.validate_json(json.dumps(stored)) == entry
