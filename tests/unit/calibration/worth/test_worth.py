"""What a trial is expected to save, beside neighbours too, and which trainings a finding serves."""

from dataclasses import replace

import pytest
from support.calibration.findings import FINDING
from support.calibration.simulated import MIB, OWN, Memoryless, Simulated, usual

from calibration.choose import LONGER, serves
from calibration.search.search import search
from calibration.space import Space
from calibration.task import Options, Task
from calibration.worth.priors import change_of
from preflight.contract.plan import Plan
from preflight.contract.verdicts import Verdict

SPACE = Space(threads=(2, 1), processors=2, bfloat16=True, tcmalloc=True, compiler=False)
TASK = Task(
    own=OWN, batch_size=128, steps_per_epoch=430, validation=5000, epochs=50, space=SPACE, memory_bytes=4096 * MIB,
    samples=16, exact=False, seconds=45.0,
)  # fmt: skip


def test_threads_are_told_apart_by_the_cores() -> None:
    """As many as there are, one more for a broken quota, fewer, and fewer beside a neighbour have other chances."""
    counts = [change_of("threads", replace(OWN, threads=count), 2, disturbed=False) for count in (1, 2, 3)]
    assert counts == ["fewer_threads", "cores_threads", "quota_threads"]
    assert change_of("threads", replace(OWN, threads=1), 2, disturbed=True) == "fewer_threads_disturbed"


def beside_a_neighbour(plan: Plan) -> float:
    """Return the seconds of a step where all threads wait for the one that shares its processor."""
    return usual(plan) * (30 if plan.threads == 2 else 1)


def test_beside_a_neighbour_a_short_training_tries_fewer_threads() -> None:
    """It gains many times what the race costs, and is believed for as long as the neighbour may stay."""
    task = replace(TASK, steps_per_epoch=10, epochs=1)
    lab = Simulated(beside_a_neighbour, disturbed=lambda _: True)
    finding = search(task, lab, Memoryless(), lambda _: None)
    assert (finding.plan.threads, finding.confidence, finding.doubt) == (1, "low", "the machine was busy")
    assert finding.prediction.threads_alone == 2
    assert finding.confirmation is not None
    assert finding.confirmation.proven
    quiet = search(task, Simulated(), Memoryless(), lambda _: None)
    (trial,) = (trial for trial in quiet.trials if trial.knob == "threads")
    assert (trial.verdict, quiet.prediction.threads_alone) == ("skipped", None)


@pytest.mark.parametrize(("times", "noise", "threads"), [(4, 0.0, 1), (2, 0.2, 2)])
def test_a_small_gain_beside_a_neighbour_is_believed_where_its_interval_is(
    times: float, noise: float, threads: int
) -> None:
    """A fresh process is more than a short training can afford: then the races decide, where they leave no doubt."""
    task = replace(TASK, steps_per_epoch=100, epochs=1, knobs=frozenset({"threads"}))

    def speed(plan: Plan) -> float:
        return usual(plan) * (times if plan.threads == 2 else 1)

    lab = Simulated(speed, disturbed=lambda _: True, starting=9.0, noise=noise)
    finding = search(task, lab, Memoryless(), lambda _: None)
    assert [trial.verdict for trial in finding.trials if trial.knob == "threads"] == ["won"]
    assert (finding.plan.threads, finding.confirmation is None) == (threads, threads == 2)


def test_a_finding_for_a_short_training_does_not_serve_a_long_one() -> None:
    """It left out what a longer one pays for; one that left nothing out serves all."""
    short = replace(FINDING, searched_epochs=3)
    assert serves(short, 3 * LONGER, Options())
    assert not serves(short, 3 * LONGER + 1, Options())
    assert not serves(short, 1, Options(thorough=True))
    assert serves(FINDING, 10_000, Options(thorough=True))


def test_channels_last_beside_bfloat16_has_chances_of_its_own() -> None:
    """Without batch norms it rarely gains: a short training leaves it out, a long one measures it."""
    both = replace(OWN, precision="bfloat16", memory_format="channels_last")

    def verdict(steps: int) -> Verdict:
        task = replace(TASK, steps_per_epoch=steps, epochs=1)
        finding = search(task, Simulated(statistics=False), Memoryless(), lambda _: None)
        (trial,) = (trial for trial in finding.trials if trial.plan == both)
        return trial.verdict

    assert verdict(1_000) == "skipped"
    assert verdict(30_000) == "won"
