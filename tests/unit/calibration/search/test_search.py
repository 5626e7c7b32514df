"""The search on simulated machines, whose every plan has a known speed and a known memory."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import groupby, product
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.calibration.bandwidth import Bandwidth
from support.calibration.simulated import GAUGE, MIB, OWN, Memoryless, Simulated, Speeds, Throttled, even, usual

from calibration.acceptance.confirmation import CONFIRMING_PAIRS, STEADY_BLOCKS, STEADY_PERIODS, STEADY_SHARE
from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.measure.protocol import Checked, Measure, Measured
from calibration.races.baseline import OVERDUE, RESTARTS
from calibration.races.budget import MIN_SECONDS, PAIRS
from calibration.races.evaluation import COSINE, GAIN, LEVEL, LIKELY
from calibration.races.racing import AGAIN, DROP_BELOW
from calibration.races.run import NothingMeasured
from calibration.result import CalibrationResult, MemoryProbe, Trial
from calibration.search.mutations import MIN_MICRO_BATCH
from calibration.search.search import search
from calibration.space import COMPILE_SECONDS, PREFETCH, Space
from calibration.task import Task
from preflight.contract.plan import KNOBS, NEEDED, Allocator, MemoryFormat, Plan, Precision
from preflight.contract.verdicts import Confidence, TrialKnob
from preflight.numbers import rough_interval
from preflight.statistics import MIN_PAIRS
from training.process.launch import process_config
from worker.events.plan_words import reasons

TCMALLOC = replace(OWN, allocator="tcmalloc")
BFLOAT16 = replace(OWN, precision="bfloat16", memory_format="channels_last")
BEST = replace(BFLOAT16, allocator="tcmalloc")
"""The fastest plan on the usual machine."""
SPACE = Space(threads=(2, 1), processors=2, bfloat16=True, tcmalloc=True, compiler=True)
TASK = Task(
    own=OWN, batch_size=128, steps_per_epoch=430, validation=5000, epochs=1, space=SPACE, memory_bytes=4096 * MIB,
    samples=16, exact=False, seconds=45.0,
)  # fmt: skip
LONG = replace(TASK, epochs=1000)
"""A training so long that the whole of `seconds` may be spent."""


ALLOCATORS: tuple[Allocator, ...] = ("default", "tcmalloc")


def found(lab: Simulated, task: Task = TASK, records: Memoryless | None = None) -> CalibrationResult:
    return search(task, lab, records or Memoryless(), lambda _: None)


def trials_of(finding: CalibrationResult, knob: TrialKnob) -> list[Trial]:
    return [trial for trial in finding.trials if trial.knob == knob]


def only(*knobs: TrialKnob, task: Task = LONG) -> Task:
    """Return a task in which these knobs alone may be turned."""
    return replace(task, knobs=frozenset(knobs))


def test_a_trial_says_where_fewer_steps_were_measured_than_asked_for() -> None:
    """A plan that is many times slower is measured until that is known."""
    lab = Simulated(lambda plan: usual(plan) * (30 if plan.threads == 1 else 1))
    finding = found(lab, only("threads"))
    own, slow = finding.trials[0], trials_of(finding, "threads")[0]
    assert own.steps_asked is None
    assert slow.steps_asked is not None
    assert 0 < slow.steps < slow.steps_asked


# --- under a quota


@pytest.mark.parametrize(
    ("processors", "threads", "period_s"), [(0.25, 1, 0.1), (0.5, 1, 1.0), (1.0, 1, 0.01), (1.5, 2, 0.1)]
)
def test_under_a_quota_the_plan_of_the_most_throughput_is_found(
    processors: float, threads: int, period_s: float
) -> None:
    """Two threads are 1.7 times as fast and use two processors: up to a quota of 1.18, one thread does more with it.

    The user's plan has two; the prediction is what 400 steps take on that quota, validation included.
    """
    lab = Throttled(noise=0.01, quota=Bandwidth(processors, period_s), sample=lambda plan: usual(plan) / 128 / 3)
    finding = found(lab, only("threads", "precision"))
    assert (finding.plan.threads, finding.plan.precision) == (threads, "bfloat16")
    assert finding.confirmation is not None
    assert finding.confirmation.proven
    plan, machine = finding.plan, Bandwidth(processors, period_s)
    step_s = usual(plan)
    steps_s = sum(machine.work(step_s, threads * step_s) for _ in range(4000)) / 4000 * LONG.steps_per_epoch
    validation_s = LONG.validation / 128 / 3 * steps_s / LONG.steps_per_epoch
    assert finding.prediction.epoch_s == pytest.approx(steps_s + validation_s, rel=0.03)
    assert not finding.trials[0].disturbed


def test_a_saved_burst_moves_no_prediction() -> None:
    """Ten seconds of CPU time that nobody used before would let a short calibration run at full speed."""
    predicted = []
    for burst_s in (0.0, 10.0):
        lab = Throttled(quota=Bandwidth(0.5, burst_s=burst_s))
        predicted.append(found(lab, only("threads")).prediction.epoch_s)
    assert predicted[1] == pytest.approx(predicted[0], rel=0.01)


def test_the_plan_that_is_kept_runs_for_more_periods() -> None:
    """What the quota makes of it differs from period to period: the last measurement spans 60 of them."""
    lab = Throttled(speed=even, quota=Bandwidth(0.5, 0.05))
    found(lab, only("threads"))
    last = [steps for plan, steps in lab.asked[-STEADY_BLOCKS:] if plan == lab.asked[-1][0]]
    assert sum(last) == pytest.approx(STEADY_PERIODS * 0.05 / (0.02 / 0.5), abs=1)


def test_a_short_training_runs_for_them_as_long_as_its_gain_pays() -> None:
    """Half a minute under the user's plan: bfloat16 halves it, which pays for all of them; without a gain it is 6 %."""
    measured_s = []
    for knobs in ((), ("precision",)):
        lab = Throttled(quota=Bandwidth(0.5, 0.1))
        finding = found(lab, only(*knobs, task=TASK))
        measured_s.append(sum(steps for _, steps in lab.asked[-STEADY_BLOCKS:]) * finding.prediction.step_s)
    assert measured_s[0] == pytest.approx(STEADY_SHARE * TASK.steps_per_epoch * 2 * 0.020 / 0.5, rel=0.05)
    assert measured_s[1] == pytest.approx(STEADY_PERIODS * 0.1, rel=0.02)


def test_the_steps_of_a_race_do_not_count_under_a_quota() -> None:
    """In one, each of two plans pays a quarter for what the other drives out of the caches; kept, it pays at first."""

    def speed(plan: Plan) -> float:
        return 0.020 if len(lab.asked) > 1 and lab.asked[-2][0] == plan else 0.025

    lab = Throttled(speed=speed, quota=Bandwidth(0.5, 0.05))
    finding = found(lab, only("threads"))
    assert finding.plan.threads == 1
    assert finding.prediction.step_s == pytest.approx((3 * 0.020 + 0.025) / STEADY_BLOCKS / 0.5, rel=0.003)


# --- how sure the prediction is


@pytest.mark.parametrize(
    ("unsteadiness", "disturbed", "widest"), [(0.0, False, 1.0), (0.05, False, 1.103), (0.0, True, 1.217)]
)
def test_the_interval_is_as_wide_as_the_machine_is_unsteady(
    unsteadiness: float, disturbed: bool, widest: float
) -> None:
    """Steps without any spread leave what is known of the machine, or what neighbours make of it."""
    lab = Simulated(speed=even, disturbed=lambda _: disturbed)
    prediction = found(lab, replace(TASK, unsteadiness=unsteadiness)).prediction
    assert prediction.high_s / prediction.epoch_s == pytest.approx(widest, abs=0.002)
    assert prediction.epoch_s / prediction.low_s == pytest.approx(widest, abs=0.002)


def test_a_machine_that_changes_its_speed_meanwhile_widens_the_interval() -> None:
    """A host whose others come and go every second: the whole epoch takes neither the quick steps nor the slow ones."""
    lab = Simulated()
    lab.speed = lambda _: 0.020 * (1.6 if int(lab.clock) % 2 else 1.0)
    prediction = found(lab, TASK).prediction
    assert prediction.low_s / prediction.epoch_s * prediction.step_s < 0.020
    assert prediction.high_s / prediction.epoch_s * prediction.step_s > 0.020 * 1.3


# --- the way through


def test_the_users_plan_is_measured_first() -> None:
    """Nothing but smaller pieces of it runs before the user's own plan, and its trial is the first."""
    lab = Simulated()
    finding = found(lab)
    first = finding.trials[0]
    assert (first.knob, first.plan, first.verdict) == ("own", OWN, "own")
    assert first.steps == sum(steps for _, steps in lab.asked[:1]) > 0
    before = lab.ran[: lab.ran.index(lab.asked[0][0])]
    assert {replace(plan, micro_batch=128) for plan in before} == {OWN}


def test_the_usual_machine_yields_what_is_fastest_on_it() -> None:
    """From default, float32 and contiguous to tcmalloc, bfloat16 and channels_last, confirmed and sure."""
    finding = found(Simulated(noise=0.02), LONG)
    assert finding.plan == BEST
    assert finding.confirmation is not None
    assert finding.confirmation.proven
    assert finding.confirmation.low < 1.2 * 1.8 * 1.2 < finding.confirmation.high
    assert finding.confirmation.pairs == PAIRS  # so large a gain is sure by then
    assert finding.confidence == "high"
    assert finding.prediction.step_s == pytest.approx(usual(BEST), rel=0.03)
    assert finding.prediction.low_s <= finding.prediction.epoch_s <= finding.prediction.high_s
    epoch_s = TASK.steps_per_epoch * usual(BEST) + TASK.validation * usual(BEST) / 128 / 3
    assert finding.prediction.epoch_s == pytest.approx(epoch_s, rel=0.03)
    assert (finding.baseline, finding.batch_size, finding.samples) == (OWN, 128, 16)
    assert f"{finding.confirmation.ratio:.2f}x" in finding.why


def test_every_knob_is_reported_once_and_in_order() -> None:
    """Whatever comes of it, each knob has its trials in a row; what saves most comes first; `tell` hears of all."""
    reported: list[Trial | MemoryProbe] = []
    finding = search(TASK, Simulated(), Memoryless(), reported.append)
    assert tuple(one for one in reported if isinstance(one, Trial)) == finding.trials
    assert finding.memory is not None
    probes = [(one.phase, one.micro_batch) for one in reported if isinstance(one, MemoryProbe)]
    assert probes == [(one.phase, one.micro_batch) for one in finding.memory.probes]
    turned = [knob for knob, _ in groupby(trial.knob for trial in finding.trials[1:])]
    assert len(set(turned)) == len(turned)
    assert (turned[0], turned[-1]) == ("precision", "compile")
    assert set(NEEDED) <= set(turned)
    assert all(trial.note for trial in finding.trials if trial.verdict == "skipped")


def test_no_plan_is_measured_for_two_trials() -> None:
    """Because each costs a measurement."""
    plans = [trial.plan for trial in found(Simulated(statistics=False), LONG).trials]
    assert len(set(plans)) == len(plans)


@pytest.mark.parametrize("knob", KNOBS)
def test_only_knobs_that_may_be_turned_are_turned(knob: TrialKnob) -> None:
    """With one knob allowed, no plan differs from the user's own in what another one turns."""
    own_fields = {
        "precision": {"precision", "memory_format"}, "loader": {"loader_workers", "prefetch_factor"},
        "prefetch": {"prefetch_factor"},
    }  # fmt: skip
    finding = found(Simulated(statistics=False, fetch_share=0.5), only(knob))
    assert {trial.knob for trial in finding.trials} <= {"own", knob}
    for trial in finding.trials:
        changed = {name for name, value in asdict(trial.plan).items() if value != getattr(OWN, name)}
        assert changed <= own_fields.get(knob, {knob})


@pytest.mark.parametrize("slow", [1, 100, 200])
def test_slow_steps_are_compared_on_fewer_samples(slow: float) -> None:
    """Down to 32, so that there is time for all; what is kept is timed on whole batches, and all is told of those."""
    lab = Simulated(lambda plan: slow * usual(plan), noise=0.01, sample=lambda plan: slow * usual(plan) / 384)
    finding = found(lab, replace(TASK, epochs=50))
    assert finding.plan == BEST
    parts = [samples for _, samples in lab.samples]
    cut = 128 if slow == 1 else 32
    assert set(parts) == {cut, 128}
    assert parts.index(128) == 0 if slow == 1 else parts.index(128) > 10
    assert lab.samples[-1] == (BEST, 128)
    assert finding.prediction.step_s == pytest.approx(slow * usual(BEST), rel=0.03)
    own = next(trial for trial in finding.trials if trial.knob == "own")
    assert own.step_s == pytest.approx(slow * usual(OWN), rel=0.03)
    assert ("steps of 32 samples" in own.note) == (slow > 1)
    assert finding.calibration_seconds <= 45


def test_steps_that_take_much_of_the_memory_are_run_whole() -> None:
    """That they fit is verified before all else, however long it takes."""
    lab = Simulated(lambda plan: 20 * usual(plan))
    found(lab, replace(TASK, memory_bytes=int(lab.memory(OWN) / 0.7)))
    assert {samples for _, samples in lab.samples} == {128}


def test_a_micro_batch_is_judged_on_whole_batches() -> None:
    """A part of a batch would be one micro-batch either way."""
    lab = Simulated(lambda plan: 10 * usual(plan), statistics=False)
    found(lab, replace(only("micro_batch"), epochs=50, seconds=45.0))
    assert {samples for plan, samples in lab.samples if plan.micro_batch < 128} == {128}


def test_without_time_for_whole_batches_the_confidence_is_low() -> None:
    """What was measured on parts of them is told all the same."""
    lab = Simulated(lambda plan: 10.0 / (3 - plan.threads), sample=lambda _: 0.0001)
    finding = found(lab, replace(only("threads"), seconds=45.0))
    assert finding.plan.threads == 1
    assert {samples for _, samples in lab.samples} == {32}
    assert finding.confidence == "low"
    assert finding.prediction.step_s == pytest.approx(5.0)


def tcmalloc_at(ratio: float) -> Speeds:
    """Return a machine on which tcmalloc has `ratio` of the speed of the default allocator."""
    return lambda plan: 0.020 / (ratio if plan.allocator == "tcmalloc" else 1.0)


def test_another_speed_at_the_end_lowers_the_confidence() -> None:
    """The machine was another one while the plans were compared, or is now."""
    lab = Simulated()
    assert found(lab, only("precision")).confidence == "high"
    steady = len(lab.asked) - STEADY_BLOCKS
    lab = Simulated()
    lab.speed = lambda plan: usual(plan) * (1.3 if len(lab.asked) >= steady else 1.0)
    finding = found(lab, only("precision"))
    assert finding.plan.precision == "bfloat16"
    assert finding.confidence == "low"


def test_no_gain_leaves_the_users_plan() -> None:
    """Where nothing is faster, nothing is confirmed, the user's plan stays, and `why` says so."""
    finding = found(Simulated(even, noise=0.02), LONG)
    assert finding.plan == OWN
    assert finding.confirmation is None
    assert finding.why == "no other plan was faster"
    assert finding.confidence == "high"


def test_a_gain_that_a_fresh_process_does_not_show_leaves_the_users_plan() -> None:
    """What won the races but is no faster in a new process has not won, and `why` gives the figures."""
    lab = Simulated()
    lab.speed = lambda plan: even(plan) if lab.renewed else usual(plan)
    finding = found(lab, LONG)
    assert finding.plan == OWN
    assert finding.confirmation is not None
    assert not finding.confirmation.proven
    assert finding.why == "no other plan was proven faster; the best of 5 measured is 1.00x (1.00x to 1.00x)"
    assert any(trial.plan == lab.renewed[0] and trial.verdict == "won" for trial in finding.trials)


def test_a_gain_within_the_noise_is_not_proven() -> None:
    """A winner that is faster by just what counts as a gain is not worth leaving the user's plan for."""
    lab = Simulated(lambda plan: 0.020 / (1.035 if plan.allocator == "tcmalloc" else 1.0), noise=0.03)
    lab.random.seed(4)
    finding = found(lab, only("allocator"))
    if finding.confirmation is not None:
        assert finding.confirmation.proven == (finding.confirmation.low > GAIN)
        assert (finding.plan == OWN) is not finding.confirmation.proven


def test_the_stored_figure_is_the_confirmed_one() -> None:
    """The prediction comes from the fresh process alone: the best of many was lucky, too."""
    lab = Simulated()
    lab.speed = lambda plan: usual(plan) * (1.3 if lab.renewed and plan.allocator != "default" else 1.0)
    assert found(lab, only("allocator")).plan == OWN
    lab = Simulated()
    lab.speed = lambda plan: usual(plan) * (1.1 if lab.renewed and plan != OWN else 1.0)
    finding = found(lab, only("precision"))
    assert finding.plan != OWN
    assert finding.prediction.step_s == pytest.approx(1.1 * usual(finding.plan))


# --- random machines


@dataclass(frozen=True)
class Machine:
    """How much faster each part of a plan makes a step, alone and together."""

    step_s: float
    gains: tuple[float, ...]
    """Of each of `PARTS`; that of several fields is beyond the product of theirs."""
    micro: float
    """What each halving of the micro-batch costs."""
    fetch_share: float
    seed: int

    def seconds(self, plan: Plan) -> float:
        """Return the seconds of a step."""
        present = [all(getattr(plan, name) == value for name, value in part.items()) for part, _ in PARTS]
        ratio = math.prod(gain for gain, has in zip(self.gains, present, strict=True) if has)
        return self.step_s / ratio * math.pow(self.micro, math.log2(128 / plan.micro_batch))


CLEAR = st.sampled_from((0.6, 0.8, 0.93, 1.0, 1.08, 1.2, 1.45))
"""Gains and losses that a measurement can tell from none."""
PARTS: tuple[tuple[dict[str, object], st.SearchStrategy[float]], ...] = (
    ({"allocator": "tcmalloc"}, CLEAR),
    ({"precision": "bfloat16"}, st.sampled_from((0.4, 0.9, 1.0, 1.3, 2.0))),
    ({"memory_format": "channels_last"}, st.sampled_from((1.0, 1.08, 1.2, 1.45))),
    ({"precision": "bfloat16", "memory_format": "channels_last"}, st.sampled_from((1.0, 1.1))),
    ({"threads": 1}, st.sampled_from((0.55, 0.8, 1.0, 1.15))),
    ({"threads": 1, "memory_format": "channels_last"}, st.sampled_from((0.97, 1.0, 1.03))),
    ({"prefetch_factor": PREFETCH}, CLEAR),  # of a loader process
)
MACHINES = st.builds(
    Machine, step_s=st.sampled_from((0.002, 0.018, 0.07)), gains=st.tuples(*(gains for _, gains in PARTS)),
    micro=st.sampled_from((1.0, 1.1, 0.9)), fetch_share=st.sampled_from((0.01, 0.3)), seed=st.integers(0, 1000),
)  # fmt: skip


def every_plan(machine: Machine) -> Sequence[Plan]:
    """Return the whole space, where loaders are of use only if fetching takes a share of the step."""
    return [
        Plan(
            threads=threads, micro_batch=micro, precision=precision, memory_format=memory_format, allocator=allocator,
            loader_workers=workers, prefetch_factor=PREFETCH if workers else None,
        )
        for threads, micro, precision, memory_format, allocator, workers in product(
            (1, 2), (16, 32, 64, 128), get_args(Precision), get_args(MemoryFormat), ALLOCATORS,
            (0, 1) if machine.fetch_share > 0.05 else (0,),
        )
    ]  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("noise", [0.02, 0.03])
@settings(max_examples=30, deadline=None, derandomize=True)
@given(machine=MACHINES)
def test_the_winner_is_nearly_the_best_there_is(machine: Machine, noise: float) -> None:
    """Within 5 % of the fastest plan of the whole space, never slower than the user's own, and within the budget."""
    seconds = cache(machine.seconds)
    lab = Simulated(
        seconds, noise=noise, statistics=False, fetch_share=machine.fetch_share,
        sample=lambda plan: seconds(plan) / 128 / 3,
    )  # fmt: skip
    lab.random.seed(machine.seed)
    finding = found(lab, LONG)
    fastest = min(map(seconds, every_plan(machine)))
    assert seconds(finding.plan) <= 1.05 * fastest
    assert seconds(finding.plan) <= seconds(OWN)
    assert finding.calibration_seconds <= finding.budget_s
    assert all(trial.peak_bytes is None or trial.peak_bytes <= LONG.memory_bytes for trial in finding.trials)


# --- races


@pytest.mark.parametrize(
    ("ratio", "verdict", "pairs"),
    [(DROP_BELOW - 0.01, "dropped", MIN_PAIRS), (DROP_BELOW + 0.01, "lost", PAIRS), (0.1, "dropped", MIN_PAIRS)],
)
def test_only_a_much_slower_plan_is_dropped_early(ratio: float, verdict: str, pairs: int) -> None:
    """A plan below 85 % of the best one's speed is dropped after three pairs, not before; others are measured."""
    lab = Simulated(tcmalloc_at(ratio))
    trial = trials_of(found(lab, only("allocator")), "allocator")[0]
    assert (trial.plan, trial.verdict) == (TCMALLOC, verdict)
    assert trial.ratio == pytest.approx(ratio, rel=0.01)
    assert lab.blocks(TCMALLOC) == pairs


def test_a_gain_that_two_pairs_leave_open_is_raced_on() -> None:
    """Of one step each, 2x and 1.05x: two pairs more prove it, which would take a fresh process otherwise."""

    def speed(plan: Plan) -> float:
        return 0.06 if plan.precision == "bfloat16" else 0.063 if lab.blocks(OWN) == 2 else 0.12

    lab = Simulated(speed, statistics=False, sample=lambda _: 0.0)
    finding = found(lab, replace(only("precision"), epochs=1, steps_per_epoch=200))
    bfloat16 = replace(OWN, precision="bfloat16")
    assert (finding.plan, lab.renewed) == (bfloat16, [])
    assert finding.confirmation is not None
    assert (finding.confirmation.pairs, finding.confirmation.proven) == (4, True)


@pytest.mark.parametrize(
    ("knob", "field", "value", "least"),
    [("allocator", "allocator", "tcmalloc", LIKELY), ("threads", "threads", 1, LIKELY), ("interop", "interop", 2, GAIN),
     ("affinity", "affinity", "pinned", GAIN), ("precision", "precision", "bfloat16", GAIN)],
)  # fmt: skip
@pytest.mark.parametrize("beyond", [0.001, -0.001])
def test_a_likely_gain_is_taken_where_only_speed_is_at_stake(
    knob: TrialKnob, field: str, value: object, least: float, beyond: float
) -> None:
    """A knob that seldom pays, and a reduced precision, must prove theirs; the confirmation judges them together."""

    def speed(plan: Plan) -> float:
        return 0.020 / (least + beyond if getattr(plan, field) == value else 1.0)

    task = replace(only(knob), space=replace(SPACE, processors=4))
    lab = Simulated(speed, sample=lambda _: 0.0)
    tried = [each for each in trials_of(found(lab, task), knob) if getattr(each.plan, field) == value]
    assert tried[0].verdict == ("won" if beyond > 0 else "level")
    assert tried[0].note == ("likely, not proven" if beyond > 0 and least < GAIN else "")


def test_small_gains_are_seldom_missed_on_a_noisy_machine() -> None:
    """Where bfloat16 with channels_last gains 2x and tcmalloc another 6 %, most searches find both."""

    def speed(plan: Plan) -> float:
        seconds = 0.026 / (1.06 if plan.allocator == "tcmalloc" else 1.0) * (1.0 if plan.threads == 2 else 1.7)
        return seconds / (2.0 if plan.precision == "bfloat16" and plan.memory_format == "channels_last" else 1.0)

    plain = replace(TASK, space=replace(SPACE, compiler=False), validation=0, epochs=20)
    plans = [found(Simulated(speed, noise=0.15, random=Random(seed)), plain).plan for seed in range(30)]  # noqa: S311
    assert sum(plan == replace(BFLOAT16, allocator="tcmalloc") for plan in plans) >= 24


def test_the_prediction_knows_the_speed_of_the_machine() -> None:
    """It is timed beside the plan that stays, be that the winner or the user's own."""
    findings = [found(Simulated(speed)) for speed in (even, usual)]
    assert [finding.plan == OWN for finding in findings] == [True, False]
    assert {finding.prediction.gauge_s for finding in findings} == {GAUGE}


def test_both_plans_of_a_race_take_turns() -> None:
    """A B, B A, A B, B A: what slows the machine down for a while meets both alike."""
    lab = Simulated(even)
    found(lab, only("allocator"))
    first = next(number for number, (plan, _) in enumerate(lab.asked) if plan == TCMALLOC)
    turns = [plan for plan, _ in lab.asked[first - 1 : -STEADY_BLOCKS]]
    assert turns == [OWN, TCMALLOC, TCMALLOC, OWN] * (PAIRS // 2)


@pytest.mark.parametrize("samples", [1, 3, 33])
def test_as_many_steps_are_measured_as_were_asked_for(samples: int) -> None:
    """Where the user says how many, each plan that is not dropped is measured for so many steps, warm-up apart."""
    lab = Simulated(noise=0.02)
    finding = found(lab, replace(LONG, samples=samples, exact=True, epochs=100_000))
    measured = [trial for trial in finding.trials if trial.steps and trial.verdict != "dropped"]
    assert len(measured) > 3
    assert {trial.steps for trial in measured} == {samples}
    assert finding.samples == samples
    assert sum(trial.steps for trial in finding.trials) <= sum(steps for _, steps in lab.asked)


def test_as_many_are_measured_of_a_short_training() -> None:
    """On a slow machine, too, where a share of that training would be over after two."""
    short = replace(TASK, samples=4, exact=True, steps_per_epoch=10)
    assert found(Simulated(lambda _: 0.15), short).trials[0].steps == 4
    assert found(Simulated(lambda _: 0.15), replace(short, exact=False)).trials[0].steps == 2


def test_a_quick_model_is_measured_for_longer() -> None:
    """Where nobody says how many, steps of a millisecond are more than the tier's: blocks of 200 ms say more."""
    assert found(Simulated(lambda plan: usual(plan) / 20), LONG).trials[0].steps > 10 * TASK.samples


def test_a_disturbed_pair_is_measured_again() -> None:
    """What was measured while others were at work is left out, and the trial counts as undisturbed."""
    lab = Simulated(usual)
    began: list[float] = []

    def once(now: float) -> bool:
        if TCMALLOC in lab.ran and not began:
            began.append(now)
        return bool(began) and now <= began[0]

    lab.disturbed = once
    lab.speed = lambda plan: usual(plan) * (5 if plan == TCMALLOC in lab.ran and lab.blocks(plan) == 0 else 1)
    trial = trials_of(found(lab, only("allocator")), "allocator")[0]
    assert lab.blocks(TCMALLOC) >= PAIRS + 1
    assert not trial.disturbed
    assert trial.ratio == pytest.approx(1.2, rel=0.01)


def test_a_trial_that_is_always_disturbed_ends_and_says_so() -> None:
    """Pairs are repeated twice at most; then they count, and the trial says that it was disturbed."""
    lab = Simulated(tcmalloc_at(1.1), disturbed=lambda _: True)
    trial = trials_of(found(lab, only("allocator")), "allocator")[0]
    assert trial.disturbed
    assert lab.renewed == [TCMALLOC]
    assert lab.blocks(TCMALLOC) == PAIRS + AGAIN + CONFIRMING_PAIRS + AGAIN + STEADY_BLOCKS


@pytest.mark.parametrize(("when", "confidence"), [("confirming", "low"), ("racing", "high")])
def test_a_disturbed_confirmation_is_believed_for_an_hour_only(when: str, confidence: Confidence) -> None:
    """The figure that is kept comes from the confirmation alone; disturbed, it has low confidence."""
    lab = Simulated(usual)
    lab.disturbed = lambda _: bool(lab.renewed) == (when == "confirming")
    finding = found(lab, LONG)
    assert finding.plan != OWN
    assert finding.confidence == confidence
    assert finding.confirmation is not None
    low, high = finding.confirmation.low, finding.confirmation.high
    if confidence == "low":  # no single figure
        assert finding.why == f"probably faster than your own plan ({rough_interval(low, high)}; the machine was busy)"
    else:
        assert finding.why.startswith(f"{finding.confirmation.ratio:.2f}x as fast as your own plan")


def test_where_two_do_not_fit_they_are_measured_one_after_the_other() -> None:
    """With memory for one model alone, no two are warm at once, and the faster plan is found all the same."""

    class Watched(Simulated):
        def measure(self, order: Measure) -> Measured:
            measured = super().measure(order)
            warm.append(tuple(self.warm))
            return measured

    warm: list[tuple[Plan, ...]] = []
    lab = Watched(usual, noise=0.01)
    own = replace(OWN, eval_batch=100)
    finding = found(lab, replace(LONG, own=own, memory_bytes=450 * MIB))
    assert warm == [(plan,) for plan, _ in lab.asked]
    assert len(set(warm)) > 3
    assert finding.plan == replace(BEST, eval_batch=100)
    assert finding.memory is not None
    assert finding.memory.max_feasible == 128


# --- knobs


@pytest.mark.parametrize("cosine", [COSINE, 0.5, -1.0])
def test_a_precision_whose_gradients_differ_is_rejected(cosine: float) -> None:
    """However fast bfloat16 is, it is not even measured where its gradients are not those of float32."""
    lab = Simulated(cosine=cosine)
    lab.speed = lambda plan: usual(plan) / (9 if plan.precision == "bfloat16" else 1)
    finding = found(lab, LONG)
    rejected = [trial for trial in finding.trials if trial.verdict == "rejected"]
    assert [trial.plan.precision for trial in rejected] == ["bfloat16"] * len(lab.checked) != []
    assert all("cosine" in trial.note for trial in rejected)
    assert all(plan.precision == "float32" for plan, _ in lab.asked)
    assert finding.plan.precision == "float32"
    assert finding.plan.memory_format == "channels_last"
    assert finding.confidence == "high"


def test_gradients_are_compared_only_where_the_precision_changes() -> None:
    """Another layout, allocator or thread count computes the same."""
    lab = Simulated()
    found(lab)
    assert [plan.precision for plan in lab.checked] == ["bfloat16"]


def test_the_users_own_bfloat16_is_tried_against_float32() -> None:
    """A wish of the user's may be a slow one: it is measured like any other, and left where float32 is faster."""
    own = replace(OWN, precision="bfloat16")
    lab = Simulated(lambda plan: 0.020 * (3 if plan.precision == "bfloat16" else 1))
    assert found(lab, replace(LONG, own=own)).plan.precision == "float32"
    assert own not in lab.checked


@pytest.mark.parametrize(
    ("slower", "sizes"), [(1.0, [64, 32, MIN_MICRO_BATCH]), (1.015, [64])], ids=["flat", "creeping"]
)
def test_the_smallest_micro_batch_that_is_as_fast_is_taken(slower: float, sizes: list[int]) -> None:
    """Less memory decides, down to the least size worth trying; losses of 1.5 % a halving do not add up beyond 2 %."""

    def speed(plan: Plan) -> float:
        seconds = 0.020 / (1.5 if plan.allocator == "tcmalloc" else 1.0)
        return seconds * math.pow(slower, math.log2(128 / plan.micro_batch))

    finding = found(Simulated(speed, statistics=False), LONG)
    assert finding.plan == replace(TCMALLOC, micro_batch=sizes[-1])
    assert speed(TCMALLOC) / speed(finding.plan) >= LEVEL
    as_fast = [trial for trial in trials_of(finding, "micro_batch") if trial.note == "as fast in less memory"]
    assert [trial.plan.micro_batch for trial in as_fast] == sizes


def test_a_faster_micro_batch_is_followed_as_far_as_it_gains() -> None:
    """Halving continues from the plan that won, and stops at the first that is slower."""

    cached = {128: 0.020, 64: 0.015, 32: 0.012}
    lab = Simulated(lambda plan: cached.get(plan.micro_batch, 0.030), statistics=False)
    finding = found(lab, only("micro_batch"))
    assert [trial.plan.micro_batch for trial in trials_of(finding, "micro_batch")] == [64, 32, 16]
    assert finding.plan.micro_batch == 32


def test_batch_norms_keep_their_micro_batch() -> None:
    """Where a micro-batch is a matter of learning, none but the user's own is tried, and the trial says why."""
    lab = Simulated(lambda plan: plan.micro_batch / 6400)
    finding = found(lab, LONG)
    assert {plan.micro_batch for plan, _ in lab.asked} == {128}
    (trial,) = trials_of(finding, "micro_batch")
    assert trial.verdict == "skipped"
    assert "batch norms" in trial.note


@pytest.mark.parametrize("statistics", [True, False])
def test_memory_takes_the_users_batch_in_pieces(statistics: bool) -> None:
    """A micro-batch that does not fit is made smaller before anything is measured, and the note names figures."""
    lab = Simulated(even, memory=lambda plan: 300 * MIB + plan.micro_batch * 8 * MIB, statistics=statistics)
    finding = found(lab, replace(LONG, memory_bytes=1000 * MIB))
    own = finding.trials[0]
    assert (own.plan.micro_batch, own.plan.eval_batch) == (64, 68)
    assert finding.plan.micro_batch <= 64
    assert "needs about 1324 MiB" in own.note
    assert ("batch norms" in own.note) is statistics
    assert finding.baseline == OWN
    assert finding.memory is not None
    assert finding.memory.max_feasible == 64
    assert all(trial.peak_bytes is None or trial.peak_bytes <= 1000 * MIB for trial in finding.trials)


@pytest.mark.parametrize(("memory_mib", "beside"), [(4096, 1), (500, 0)])
def test_gradients_are_compared_beside_nothing_else_where_memory_is_short(memory_mib: int, beside: int) -> None:
    """They take a second model, and the user's own plan is warm in that process."""

    class Watched(Simulated):
        def check(self, plan: Plan, reference: Plan, *, steps: int, samples: int) -> Checked:
            warm.append(len([one for one in self.warm if process_config(one) == process_config(plan)]))
            return super().check(plan, reference, steps=steps, samples=samples)

    warm = list[int]()
    found(Watched(), replace(LONG, memory_bytes=memory_mib * MIB))
    assert warm[0] == beside


def test_a_measurement_that_hangs_does_not_take_the_longest_time() -> None:
    """It ends soon after the time that the calibration has, so that the training begins."""

    finding = found(Simulated(lambda plan: 1e6 if plan.precision == "bfloat16" else usual(plan)))
    assert finding.calibration_seconds <= MIN_SECONDS + OVERDUE
    assert finding.plan.precision == OWN.precision


@pytest.mark.parametrize("earlier", [False, True])
def test_compiling_is_charged_with_the_time_it_takes(earlier: bool) -> None:
    """The same gain of a step pays in a long training, and does not in a short one, whatever was measured in that."""
    records = Memoryless()
    for epochs, compiled in ((200, False), (1000, True)):
        lab = Simulated(lambda plan: 0.020 / (1.04 if plan.compile else 1.0), compiling=19.0)
        task = replace(only("compile"), epochs=epochs, seconds=120.0)
        finding = found(lab, task, records if earlier else None)
        (trial,) = trials_of(finding, "compile")
        assert trial.verdict == ("won" if compiled else "lost")
        assert "19 s of compiling" in trial.note
        assert finding.plan.compile is compiled
        if compiled:
            assert finding.prediction.warm_s == pytest.approx(19.0, abs=0.5)


def test_the_evaluation_batch_is_chosen_by_what_an_epoch_gains() -> None:
    """Where validation is much of an epoch, the batch that makes it quickest is taken; the steps stay as they are."""
    lab = Simulated(even, sample=lambda plan: 0.020 / 128 * (0.5 if plan.eval_batch == 512 else 1.0))
    finding = found(lab, replace(only("eval_batch"), validation=60_000, steps_per_epoch=100))
    assert finding.plan == replace(OWN, eval_batch=512)
    assert [trial.plan.eval_batch for trial in trials_of(finding, "eval_batch")] == [128, 512, 1024]
    assert finding.prediction.validation_s == pytest.approx(60_000 * 0.010 / 128)


def test_without_a_validation_no_evaluation_batch_is_tried() -> None:
    """A training that validates nothing is predicted by its steps alone."""
    lab = Simulated()
    finding = found(lab, replace(TASK, validation=0))
    assert [trial.verdict for trial in trials_of(finding, "eval_batch")] == ["skipped"]
    assert finding.prediction.validation_s == 0
    assert finding.prediction.epoch_s == pytest.approx(430 * finding.prediction.step_s)


def test_racing_evaluations_leaves_the_evidence_of_others_alone() -> None:
    """Plans that share their steps do not share what is measured of them afterwards."""
    lab = Simulated(even, sample=lambda plan: 0.020 / 128 / (2 if plan.eval_batch == 128 else 1))
    task = replace(only("eval_batch", "allocator", "affinity", "interop"), validation=60_000, steps_per_epoch=100)
    finding = found(lab, replace(task, samples=16, exact=True))
    assert finding.plan.eval_batch == 128
    assert {trial.steps for trial in finding.trials if trial.steps and trial.knob != "eval_batch"} == {16}


@pytest.mark.parametrize(
    ("share", "memory_mib", "workers", "reason"),
    [(0.01, 4096, 0, "fetching is"), (0.4, 4096, 1, ""), (0.5, 500, 0, "memory")],
    ids=["quick to fetch", "slow to fetch", "no memory for a process with its own torch"],
)
def test_loader_workers_are_tried_where_fetching_takes_long_and_they_fit(
    share: float, memory_mib: int, workers: int, reason: str
) -> None:
    """One that overlaps fetching wins; otherwise no worker is started, and the trial says why."""
    lab = Simulated(lambda plan: 0.020 * (0.7 if plan.loader_workers else 1.0), fetch_share=share)
    finding = found(lab, replace(only("loader"), memory_bytes=memory_mib * MIB))
    assert any(plan.loader_workers for plan in lab.ran) is bool(workers)
    assert finding.plan.loader_workers == workers
    assert all(reason in trial.note for trial in trials_of(finding, "loader"))


# --- time


@pytest.mark.parametrize(
    ("step_s", "epochs", "starting"), [(0.001, 1, 0.9), (0.018, 1, 0.1), (0.018, 20, 0.9), (1.07, 3, 0.1)]
)
@pytest.mark.parametrize("speed", [usual, even])
def test_calibration_costs_no_more_than_it_saves(speed: Speeds, starting: float, step_s: float, epochs: int) -> None:
    """With it a training ends as soon as without, or within 3 % or 2 s of that, where plans are faster or none is.

    The processor on which none is faster has no instructions for bfloat16: where it had them, that would be tried.
    """
    lab = Simulated(
        lambda plan: speed(plan) * step_s / 0.020, sample=lambda plan: speed(plan) * step_s / 7.68, starting=starting
    )
    space = replace(SPACE, bfloat16=speed is usual)
    finding = found(lab, replace(TASK, epochs=epochs, space=space))
    without_s = epochs * (TASK.steps_per_epoch + TASK.validation / 384) * step_s
    spent_s = lab.clock + lab.import_seconds
    assert spent_s + epochs * finding.prediction.epoch_s <= without_s + max(2.0, 0.03 * without_s)
    assert finding.calibration_seconds == spent_s
    assert lab.clock <= TASK.seconds


@pytest.mark.parametrize("gain", [1.0, 1.4])
def test_one_race_may_win_back_what_the_users_own_plan_took(gain: float) -> None:
    """A fraction of a core starts a process in 5 s: to measure nothing else then would be sure to lose them."""
    lab = Simulated(lambda plan: 0.060 / (gain if plan.memory_format == "channels_last" else 1.0), starting=5.0)
    finding = found(lab, replace(TASK, space=replace(SPACE, bfloat16=False)))
    raced = [trial.plan.memory_format for trial in finding.trials if trial.ratio]
    assert (raced, finding.plan.memory_format) == (["channels_last"], "channels_last" if gain > 1 else "contiguous")


@pytest.mark.parametrize("step_s", [0.018, 1.07])
def test_a_long_enough_training_gets_all_that_is_faster(step_s: float) -> None:
    """What is left out in a short one is what it would not pay for, not what wins; the result says how far it holds."""
    lab = Simulated(lambda plan: usual(plan) * step_s / 0.020, sample=lambda plan: usual(plan) * step_s / 7.68)
    finding = found(lab, replace(TASK, epochs=50))
    assert (finding.plan, finding.searched_epochs) == (BEST, 50 if step_s < 1 else None)
    short = found(replace(lab, clock=0.0), TASK)
    assert (short.plan.precision, short.searched_epochs) == ("bfloat16", 1)
    assert short.confirmation is not None
    assert not short.confirmation.fresh_process  # too short for that: its races are the proof
    assert "by the races alone" in reasons(short)
    refused = [trial for trial in short.trials if trial.verdict == "skipped" and trial.expected_cost_s]
    assert refused
    assert all("would save about" in trial.note for trial in refused)
    assert all((trial.expected_saving_s or 0) <= (trial.expected_cost_s or 0) for trial in refused)


def test_a_thorough_search_may_take_the_longest_time() -> None:
    """Where its finding serves later trainings, the length of this one bounds nothing."""
    finding = found(Simulated(), replace(TASK, thorough=True))
    assert finding.plan == BEST
    assert 5 < finding.calibration_seconds <= finding.budget_s == TASK.seconds


def test_the_end_of_the_time_is_said() -> None:
    """What there was no time for is skipped with the reason; a main knob among it, and no other, lowers confidence."""
    finding = found(Simulated(lambda plan: 100 * usual(plan)), replace(LONG, seconds=8.0))
    missed = [trial for trial in finding.trials if "time" in trial.note and trial.verdict == "skipped"]
    assert {trial.knob for trial in missed} & set(NEEDED)
    assert finding.confidence == "low"
    assert all(trial.steps == 0 for trial in missed)
    lab = Simulated(lambda plan: even(plan) * (1000 if plan.interop == 2 else 1))
    assert found(lab, replace(TASK, epochs=50)).confidence == "high"


def test_the_users_plan_is_measured_whatever_the_time() -> None:
    """With next to no seconds the user's plan is measured and nothing else, and there is a prediction."""
    lab = Simulated()
    finding = found(lab, replace(TASK, seconds=0.01))
    assert {plan for plan, _ in lab.asked} == {OWN}
    assert finding.plan == OWN
    assert finding.prediction.step_s == pytest.approx(usual(OWN))
    unreached = [trial for trial in finding.trials if not trial.reached]
    assert {trial.note for trial in unreached} == {"time budget used up"}
    assert finding.why == f"no other plan was measured; plans not reached in time: {len(unreached)}"
    assert finding.measured == 1
    assert finding.confidence == "low"


def test_a_ratio_of_two_single_figures_has_no_interval() -> None:
    """An evaluation batch is compared by one validation each: an interval without a width would read as certainty."""
    lab = Simulated(sample=lambda plan: 0.002 if plan.eval_batch > 128 else 0.001)
    trial, *_ = trials_of(found(lab, only("eval_batch")), "eval_batch")
    assert trial.ratio is not None
    assert (trial.low, trial.high) == (None, None)


def test_whatever_is_asked_has_a_time_limit() -> None:
    """No process is waited for without end, not even the first: one that hangs would be for ever."""
    lab = Simulated()
    limits: list[float] = []
    lab.fails = lambda _: limits.append(lab.deadline)
    found(lab)
    assert max(limits) < 2 * TASK.seconds


# --- what goes wrong


@pytest.mark.parametrize(
    ("broken", "error", "failures", "best"),
    [
        ("tcmalloc", WorkerLost("it was killed (signal 9)"), 1, BFLOAT16),
        ("bfloat16", PlanFailed("RuntimeError: no"), 2, replace(BEST, precision="float32")),
    ],
)
def test_a_plan_that_fails_costs_its_trials_alone(broken: str, error: Exception, failures: int, best: Plan) -> None:
    """The trial has the reason, and the search goes on to the fastest of the others, however many plans are broken."""
    lab = Simulated(fails=lambda plan: error if broken in (plan.allocator, plan.precision) else None)
    finding = found(lab, LONG)
    failed = [trial for trial in finding.trials if trial.verdict == "failed"]
    assert [trial.note for trial in failed] == [str(error)] * failures
    assert all(broken in (trial.plan.allocator, trial.plan.precision) for trial in failed)
    assert finding.plan == best


def test_too_many_losses_end_the_search() -> None:
    """After three lost processes no further plan is begun: the best until then is what there is."""
    lab = Simulated(usual)
    lab.fails = lambda plan: WorkerLost("gone") if plan != OWN and replace(plan, micro_batch=128) != OWN else None
    finding = found(lab, LONG)
    failed = [trial for trial in finding.trials if trial.verdict == "failed"]
    assert len(failed) == RESTARTS + 1
    assert finding.plan == OWN
    assert finding.confidence == "low"
    assert any("processes were lost" in trial.note for trial in finding.trials)


@pytest.mark.parametrize("error", [WorkerLost("gone"), PlanFailed("RuntimeError: no")])
def test_a_winner_that_cannot_be_confirmed_is_not_taken(error: Exception) -> None:
    """What dies in a fresh process would die in the training: the user's plan stays, and `why` says so."""
    lab = Simulated(usual)
    lab.fails = lambda plan: error if plan in lab.renewed else None
    finding = found(lab, LONG)
    assert finding.plan == OWN
    assert finding.confirmation is None
    assert finding.confidence == "low"
    assert "confirmed" in finding.why
    assert str(error) in finding.why
    assert all(trial.at <= lab.clock for trial in finding.trials)


@pytest.mark.parametrize("error", [WorkerLost("no torch here"), PlanFailed("RuntimeError: no")])
@pytest.mark.parametrize("at", [0, 2])
def test_nothing_measured_is_said(error: Exception, at: int) -> None:
    """Where not even the user's plan can be measured, there is no finding, and the reason is the process's own."""
    lab = Simulated(usual)
    lab.fails = lambda _: error if len(lab.ran) > at else None
    with pytest.raises(NothingMeasured, match=str(error)):
        found(lab)


def test_where_nothing_is_measured_the_users_plan_still_fits() -> None:
    """What is known of memory by then stays: the user's batch is taken in the pieces that fit."""
    lab = Simulated(even, memory=lambda plan: (300 + 10 * plan.micro_batch) * MIB, allowed=1000 * MIB)
    # An evaluation is cut, too, so that this is the user's plan as it was concluded, and none of the probes.
    lab.fails = lambda plan: WorkerLost("it took too long") if plan.eval_batch < OWN.eval_batch else None
    with pytest.raises(NothingMeasured) as raised:
        found(lab, replace(TASK, memory_bytes=1000 * MIB))
    assert raised.value.plan.micro_batch in (32, 64)


def test_what_fits_by_the_line_and_is_killed_is_taken_in_pieces() -> None:
    """Memory that grows faster than the line costs a process, not the calibration: a smaller piece is measured."""

    def grows(plan: Plan) -> int:
        return 300 * MIB + plan.micro_batch * MIB + (2000 * MIB if plan.micro_batch > 100 else 0)

    lab = Simulated(even, memory=grows, allowed=1000 * MIB, statistics=False)
    finding = found(lab, replace(TASK, memory_bytes=1000 * MIB))
    assert finding.trials[0].plan.micro_batch == 64
    assert finding.trials[0].note
    assert finding.memory is not None
    assert 64 <= finding.memory.max_feasible <= 100
    assert [(probe.micro_batch, probe.outcome) for probe in finding.memory.probes if probe.phase == "1A"] == [
        (128, "killed")
    ]


# --- what earlier calibrations left


def test_every_plan_is_on_record_before_it_runs() -> None:
    """Whatever runs was noted before, and what was noted is known to have ended: nothing is left a suspect."""
    records, lab = Memoryless(), Simulated(statistics=False, fetch_share=0.5)
    unknown: list[Plan] = []
    lab.fails = lambda plan: None if plan in records.attempted else unknown.append(plan)
    found(lab, LONG, records)
    assert unknown == []
    assert set(records.attempted) <= set(records.survivors)


def test_a_suspect_is_not_run_again() -> None:
    """It has failed without a try; only the user's plan is run, which the training would run anyway."""
    lab = Simulated()
    finding = found(lab, TASK, Memoryless(suspects={OWN, BFLOAT16}))
    assert finding.trials[0].verdict == "own"
    (trial,) = [trial for trial in finding.trials if trial.plan == BFLOAT16]
    assert trial.verdict == "failed"
    assert "crashed" in trial.note
    assert BFLOAT16 not in lab.ran


@pytest.mark.parametrize("memory_mib", [4096, 650])
def test_kept_trials_are_taken_without_measuring(memory_mib: int) -> None:
    """A second calibration measures the user's plan and the confirmation, and finds the same; what is short, too."""
    own = replace(OWN, eval_batch=100)
    records, task = Memoryless(), replace(TASK, own=own, memory_bytes=memory_mib * MIB)
    first = found(Simulated(noise=0.01), task, records)
    lab = Simulated(noise=0.01)
    second = found(lab, task, records)
    assert second.plan == first.plan
    assert second.confirmation is not None
    assert {plan for plan, _ in lab.asked} == {own, first.plan}
    decided = [trial for trial in second.trials if trial.kept]
    assert [(trial.plan, trial.verdict) for trial in decided] == [
        (trial.plan, trial.verdict) for trial in first.trials if trial.ratio
    ]
    assert all(trial.seconds == 0 for trial in decided)


def test_a_kept_winner_is_raced_like_any_other() -> None:
    """What goes on from a kept trial needs no figures of it that are gone: not even where memory is short."""
    records, task = Memoryless(), replace(LONG, own=replace(OWN, eval_batch=100), memory_bytes=650 * MIB)
    found(Simulated(noise=0.01), replace(task, knobs=frozenset({"allocator"})), records)
    assert found(Simulated(noise=0.01), task, records).plan == replace(BEST, eval_batch=100)


@pytest.mark.parametrize(("step_s", "seconds"), [(0.02, 45.0), (0.1, 60.0), (0.4, 120.0)])
def test_compiling_does_not_cost_what_was_found_before(step_s: float, seconds: float) -> None:
    """It takes its time twice, to be raced and to be confirmed: where that is not left, it is not begun."""

    def speed(plan: Plan) -> float:
        return usual(plan) * step_s / 0.020 / (1.25 if plan.compile else 1.0)

    lab = Simulated(speed, compiling=COMPILE_SECONDS, sample=lambda plan: usual(plan) * step_s / 7.68)
    finding = found(lab, replace(LONG, seconds=seconds))
    assert finding.confirmation is not None
    assert finding.confirmation.proven
    assert finding.plan.precision == "bfloat16"
    assert finding.calibration_seconds <= seconds
    assert finding.plan.compile is (seconds == 120)


def test_the_cost_of_a_calibration_is_wall_time() -> None:
    """Starts of processes and imports are a part of it, told beside it; the budget alone does not count them."""
    lab = Simulated(import_seconds=7.8)
    finding = found(lab)
    assert finding.import_seconds == 7.8
    assert finding.calibration_seconds == pytest.approx(lab.clock + 7.8)


# --- a slow model in a short training


def slow(plan: Plan) -> float:
    """Return the seconds of a step like those of `resnet18` on half a core: 7.5 s in float32."""
    return 7.5 / (2.0 if plan.precision == "bfloat16" else 1.0)


@pytest.mark.parametrize("memory_mib", [1000, 4000])
def test_a_slow_model_is_measured_on_parts_whatever_its_memory(memory_mib: int) -> None:
    """Eight steps of a minute in all: bfloat16 is found for less than it saves, and no whole batch is spent on it."""
    lab = Simulated(slow, memory=lambda plan: (500 + 5 * plan.micro_batch) * MIB)
    task = replace(TASK, samples=3, steps_per_epoch=8, epochs=1, validation=0, memory_bytes=memory_mib * MIB)
    finding = found(lab, task)
    assert finding.plan.precision == "bfloat16"
    assert finding.plan.micro_batch == (64 if memory_mib == 1000 else 128)
    assert finding.confirmation is not None
    assert finding.confirmation.proven
    assert finding.calibration_seconds < 8 * 7.5 / 2
    assert {samples for _, samples in lab.samples} == {32}
    assert finding.prediction.epoch_s == pytest.approx(8 * 3.75, rel=0.01)


def test_the_last_steps_of_a_short_training_are_as_large_as_it_affords() -> None:
    """Thirty of a second: three whole ones would be a good part of them, and three of half the samples are not."""
    lab = Simulated(lambda plan: slow(plan) / 4)
    finding = found(lab, replace(TASK, steps_per_epoch=30, validation=0))
    assert {samples for _, samples in lab.samples} == {32, 64}
    assert lab.samples[-1] == (finding.plan, 64)
    assert finding.prediction.step_s == pytest.approx(slow(finding.plan) / 4)


def test_a_long_training_of_a_slow_model_ends_with_whole_batches() -> None:
    """Three of them are little then, and they are what will be trained."""
    lab = Simulated(slow, memory=lambda plan: (500 + 5 * plan.micro_batch) * MIB)
    found(lab, replace(TASK, steps_per_epoch=400, seconds=120.0, memory_bytes=4000 * MIB))
    assert [samples for _, samples in lab.samples][-2:] == [128, 128]
