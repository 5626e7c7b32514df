"""Advice on larger batches, on simulated machines whose every batch has a known speed and a known memory."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from support.calibration.findings import ADVICE
from support.calibration.simulated import MIB, OWN, Memoryless, Simulated, usual

from calibration.batch_advice import CEILING_SHARE, FACTORS, MIN_SECONDS, PAIRS, TRAINING_SHARE
from calibration.measure.backend import PlanFailed
from calibration.measure.protocol import Measure, Measured
from calibration.memory.model import SAFE
from calibration.result import BatchAdvice, BatchTrial, CalibrationResult
from calibration.search.search import search
from calibration.space import Space
from calibration.task import Task
from calibration.verdicts import batch_sentence
from preflight.contract.verdicts import BatchOutcome

SPACE = Space(threads=(2,), processors=2, bfloat16=False, tcmalloc=False, compiler=False)
TASK = Task(
    own=OWN, batch_size=128, steps_per_epoch=430, validation=5000, epochs=1, space=SPACE, memory_bytes=4096 * MIB,
    samples=16, exact=False, seconds=45.0, knobs=frozenset({"threads"}), advice="asked",
)  # fmt: skip


@dataclass
class BatchMachine(Simulated):
    """A machine whose speed depends on the effective batch."""

    gains: Sequence[float] = (1.0, 1.0, 1.0)
    """Samples per second of the larger batches against the own."""

    def measure(self, order: Measure) -> Measured:
        gains = {128 * factor: gain for factor, gain in zip(FACTORS, self.gains, strict=True)}
        gain = gains.get(order.samples or 128, 1.0)
        slow, self.speed = self.speed, lambda plan: slow(replace(plan, micro_batch=128)) / gain
        try:
            return super().measure(order)
        finally:
            self.speed = slow


def found(lab: Simulated, task: Task = TASK, records: Memoryless | None = None) -> CalibrationResult:
    return search(task, lab, records or Memoryless(), lambda _: None)


def advice_of(lab: Simulated, task: Task = TASK, records: Memoryless | None = None) -> BatchAdvice:
    advice = found(lab, task, records).advice
    assert advice is not None
    return advice


def outcomes(advice: BatchAdvice) -> list[tuple[int, int, BatchOutcome]]:
    return [(trial.batch_size, trial.micro_batch, trial.outcome) for trial in advice.trials]


def test_the_smallest_batch_within_2_percent_of_the_fastest_is_advised() -> None:
    """Its figures fit together and with the prediction: speed, epoch, memory of the grown micro-batch."""
    finding = found(BatchMachine(gains=(1.4, 1.7, 1.72), noise=0.01))
    advice = finding.advice
    assert advice is not None
    assert outcomes(advice) == [
        (128, 128, "own"), (256, 256, "measured"), (512, 512, "measured"), (1024, 1024, "measured")
    ]  # fmt: skip
    assert advice.advised == 512
    own, _, best, _ = advice.trials
    assert best.ratio == pytest.approx(1.7, rel=0.03)
    assert (best.low or 0) <= (best.ratio or 0) <= (best.high or 0)
    assert own.samples_per_s == pytest.approx(128 / finding.prediction.step_s)
    assert best.samples_per_s == pytest.approx(1.7 * 128 / usual(OWN), rel=0.03)
    assert own.epoch_s == finding.prediction.epoch_s
    steps_s = (430 // 4) * 512 / (best.samples_per_s or 1)
    assert best.epoch_s == pytest.approx(steps_s + finding.prediction.validation_s)
    assert (own.peak_bytes, best.peak_bytes) == (300 * MIB + 128 * MIB // 3, 300 * MIB + 512 * MIB // 3)
    assert best.predicted_bytes == pytest.approx(best.peak_bytes, rel=0.01)
    assert batch_sentence(advice) == (
        f"batch 512 would fit ({(best.peak_bytes or 0) // MIB} MiB of 4,096) and train 1.7 times as many samples a "
        "second; it changes what is learned, so it is yours to choose"
    )


def test_nothing_is_applied() -> None:
    """Plan, prediction and effective batch are those of a calibration without advice."""
    with_advice = found(BatchMachine(gains=(1.4, 1.7, 1.72)))
    without = found(BatchMachine(gains=(1.4, 1.7, 1.72)), replace(TASK, advice="off"))
    assert without.advice is None
    assert (with_advice.plan, with_advice.batch_size) == (without.plan, without.batch_size) == (OWN, 128)
    assert with_advice.prediction == without.prediction
    assert with_advice.trials == without.trials


@pytest.mark.parametrize("gains", [(1.0, 1.0, 1.0), (1.02, 1.02, 1.02), (0.9, 0.8, 0.5)])
def test_no_batch_is_advised_without_a_gain(gains: tuple[float, ...]) -> None:
    advice = advice_of(BatchMachine(gains=gains))
    assert advice.advised is None
    assert batch_sentence(advice) == "a larger batch would not be faster (256, 512, 1,024 were measured)"


@pytest.mark.parametrize(
    ("budget_mib", "micro_batches"),
    [
        (4096, [128, 256, 512, 1024]),
        (620, [128, 256, 512, 512]),
        (480, [128, 256, 256, 256]),
        (405, [128, 128, 128, 128]),
    ],
)
def test_the_micro_batch_grows_where_it_fits(budget_mib: int, micro_batches: list[int]) -> None:
    """What is predicted above 85 % of the memory is never run; the batch is then made of smaller pieces."""
    lab = BatchMachine(gains=(1.4, 1.7, 1.72))
    advice = advice_of(lab, replace(TASK, memory_bytes=budget_mib * MIB))
    assert [trial.micro_batch for trial in advice.trials] == micro_batches
    assert all(lab.memory(plan) <= SAFE * budget_mib * MIB for plan in lab.ran)
    assert advice.advised == 512


def test_what_does_not_fit_is_predicted_and_not_run() -> None:
    """A whole batch lies in memory, however small its pieces are."""
    lab = BatchMachine(gains=(1.4, 1.7, 1.72))
    advice = advice_of(lab, replace(TASK, memory_bytes=430 * MIB, sample_bytes=MIB // 32))
    assert outcomes(advice)[1:] == [(256, 128, "measured"), (512, 128, "refused")]
    assert {samples for _, samples in lab.samples} == {128, 256}
    assert advice.advised == 256
    note = advice.trials[-1].note
    assert note == "predicted to take 366 MiB, above 85% of 430"


def test_a_kill_costs_the_advice_alone() -> None:
    """The plan stays; the crash is no suspicion against later calibrations; no larger batch is run."""
    memory = lambda plan: 300 * MIB + (4000 * MIB if plan.micro_batch == 512 else plan.micro_batch * MIB // 3)  # noqa: E731
    lab, records = BatchMachine(gains=(1.0, 1.7, 1.7), memory=memory, allowed=3000 * MIB), Memoryless()
    finding = found(lab, records=records)
    assert finding.advice is not None
    assert outcomes(finding.advice)[1:] == [(256, 256, "measured"), (512, 512, "killed")]
    assert finding.plan == OWN
    assert finding.confidence == "high"
    larger = replace(OWN, micro_batch=512)
    assert larger in records.attempted
    assert larger in records.survivors
    assert batch_sentence(finding.advice) == (
        "a larger batch would not be faster (256 was measured; 512: killed for memory)"
    )


def test_what_ran_above_the_budget_is_not_advised() -> None:
    """The prediction was wrong, and no kernel enforces the budget: the measurement tells."""
    memory = lambda plan: 300 * MIB + plan.micro_batch * MIB // (3 if plan.micro_batch < 512 else 1) * 8  # noqa: E731
    lab = BatchMachine(gains=(1.0, 1.7, 1.7), memory=memory)
    advice = advice_of(lab, replace(TASK, memory_bytes=2200 * MIB))
    assert outcomes(advice)[-1][2] == "over"
    assert advice.advised is None


def test_a_crash_of_an_earlier_calibration_is_not_repeated() -> None:
    records = Memoryless(suspects={replace(OWN, micro_batch=256)})
    lab = BatchMachine()
    assert outcomes(advice_of(lab, records=records))[1:] == [(256, 256, "failed")]
    assert replace(OWN, micro_batch=256) not in lab.ran


def test_a_plan_that_breaks_costs_the_advice_alone() -> None:
    broken = lambda plan: PlanFailed("no such kernel") if plan.micro_batch > 128 else None  # noqa: E731
    finding = found(BatchMachine(fails=broken))
    assert finding.advice is not None
    assert batch_sentence(finding.advice) == "no larger batch was measured: 256: no such kernel"
    assert finding.confidence == "high"


@pytest.mark.parametrize(("largest", "sizes"), [(1024, [256, 512, 1024]), (1023, [256, 512]), (255, [])])
def test_a_batch_is_no_larger_than_the_samples_of_an_epoch(largest: int, sizes: list[int]) -> None:
    advice = advice_of(BatchMachine(), replace(TASK, largest_batch=largest))
    assert [trial.batch_size for trial in advice.trials[1:]] == sizes
    if not sizes:
        assert batch_sentence(advice) == "no larger batch was measured: an epoch has too few samples for one"


@pytest.mark.parametrize("epochs", [1, 10, 40, 100, 10_000])
def test_without_being_asked_for_it_takes_a_small_share(epochs: int) -> None:
    """Of a training of seconds no step; of a longer one a hundredth, and a tenth of the calibration's ceiling."""
    lab = BatchMachine(gains=(1.4, 1.7, 1.72))
    task = replace(TASK, advice="auto", epochs=epochs)
    finding = found(lab, task)
    share_s = TRAINING_SHARE * epochs * 430 * usual(OWN)
    if share_s < MIN_SECONDS:
        advice = finding.advice
        assert advice is not None
        assert (outcomes(advice)[1:], advice.complete, advice.seconds) == ([(256, 256, "skipped")], False, 0.0)
        assert re.search(
            r"256: it is predicted to fit \(\d+ of 4,096 MiB\), but too little time is left to measure it, about "
            r"\d\.\d s; `preflight calibrate` does$", batch_sentence(advice)
        )  # fmt: skip
        assert max(samples for _, samples in lab.samples) == 128
    else:
        assert finding.advice is not None
        assert not finding.advice.asked
        assert finding.advice.seconds <= min(share_s, CEILING_SHARE * task.seconds)
        assert finding.advice.advised in (256, 512)


def test_a_slow_model_says_what_the_time_did_not_reach() -> None:
    lab = BatchMachine(speed=lambda _: 2.5, sample=lambda _: 0.001)
    advice = advice_of(lab, replace(TASK, steps_per_epoch=50))
    assert outcomes(advice)[1:] == [(256, 256, "skipped")]
    assert not advice.complete
    assert batch_sentence(advice).startswith("no larger batch was measured: 256: it is predicted to fit (")


def test_batches_take_turns() -> None:
    """A machine that slows down for all steps does not make a larger batch look slower."""
    lab = BatchMachine(gains=(1.3, 1.3, 1.3))
    steady, slow = lab.speed, lambda plan: usual(plan) * (1 + lab.clock / 20)
    lab.speed = slow
    advice = advice_of(lab)
    assert steady is usual
    assert advice.trials[1].ratio == pytest.approx(1.3, rel=0.05)
    samples = [count for _, count in lab.samples]
    first = samples.index(256)  # alone, for its memory
    assert samples[first + 1 :][: 2 * PAIRS] == [128, 256, 256, 128, 128, 256, 256, 128, 128, 256]


@pytest.mark.parametrize(
    ("ratio", "words"), [(1.7, "train 1.7 times as many"), (1.149, "train 1.15 times as many"), (8, "train 8.0 times")]
)
def test_a_gain_is_told_no_finer_than_it_is_known(ratio: float, words: str) -> None:
    assert words in batch_sentence(with_best(replace(ADVICE.trials[2], ratio=ratio)))


def test_a_disturbed_gain_is_told_as_an_interval() -> None:
    sentence = batch_sentence(replace(ADVICE, disturbed=True))
    assert "and probably train 1.6 to 1.7 times as many samples a second (the machine was busy);" in sentence


def with_best(trial: BatchTrial) -> BatchAdvice:
    return replace(ADVICE, trials=(*ADVICE.trials[:2], trial))
