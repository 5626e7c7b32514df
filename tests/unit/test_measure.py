"""Measuring: contenders run real steps, races are fair, and the search keeps what was measured to be best.

Where a fact is about which of two plans is faster, the seconds of the steps are scripted, because on a shared
machine the real ones decide nothing for certain. The steps themselves, where they matter, are real.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from torch import Tensor

from calibration import measure
from calibration.child import CalibrationRequest, Search, _search, _try
from calibration.measure import (
    BLOCKS,
    DROP_BELOW,
    GAIN,
    WARM_UP,
    Contender,
    Race,
    _block_size,
    gradients_agree,
    race,
)
from training import step as training_step
from training.datasets import Samples, Split
from training.journal import JournalReader, JournalWriter, Record
from training.plan import Plan
from training.spec import TrainSpec
from training.step import TrainStep
from training.store import Store, open_store, write

SPEC = TrainSpec(dataset="noise", model="cnn", batch_size=8, validation_samples=4)
OWN = Plan(threads=1, micro_batch=8, eval_batch=16)
TUNED = replace(OWN, allocator="tuned")
LAST = replace(OWN, memory_format="channels_last")
BFLOAT16 = replace(LAST, precision="bfloat16")


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return an open store of 36 random training images; what they show changes no cost."""
    random = np.random.default_rng(0)

    def split(count: int) -> Split:
        images = random.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
        return Split(images, random.integers(0, 10, count, dtype=np.uint8))

    path = tmp_path_factory.mktemp("noise") / "noise.safetensors"
    write(path, "noise", Samples(split(36), split(4), classes=10), ())
    return open_store(path)


@pytest.fixture(autouse=True)
def torch_as_before() -> Iterator[None]:
    """Give torch back the threads it had."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class Scripted(Contender):
    """A contender whose steps take a scripted number of seconds instead of running."""

    cost = 1.0

    def _run(self, steps: int) -> list[float]:
        return [self.cost] * steps


def scripted(store: Store, cost: float) -> Scripted:
    contender = Scripted(SPEC, OWN, store)
    contender.cost = cost
    return contender


class Scaled(Contender):
    """A contender whose steps run for real and then count `scale` times: slowed down or sped up beyond noise."""

    scale = 1.0
    log: list[tuple[str, int]]
    name = ""

    def _run(self, steps: int) -> list[float]:
        return [self.scale * seconds for seconds in super()._run(steps)]

    def measure(self, steps: int) -> list[float]:
        self.log.append((self.name, steps))
        return super().measure(steps)


def pair(store: Store, scale: float) -> tuple[Scaled, Scaled, list[tuple[str, int]]]:
    """Return a best contender, a challenger whose steps count `scale` times, and the log of both."""
    best, challenger = Scaled(SPEC, OWN, store), Scaled(SPEC, LAST, store)
    log: list[tuple[str, int]] = []
    best.name, best.log = "best", log
    challenger.name, challenger.log, challenger.scale = "challenger", log, scale
    return best, challenger, log


@given(samples=st.integers(1, 10_000))
def test_blocks_cover_all_samples(samples: int) -> None:
    """The blocks of a race add up to the samples and differ by one step at most."""
    sizes = [_block_size(samples, block) for block in range(BLOCKS)]
    assert sum(sizes) == samples
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("ratio", "dropped", "won"),
    [
        (GAIN, False, True),
        (GAIN - 1e-9, False, False),
        (1.0, False, False),
        (10.0, False, True),
        (10.0, True, False),
        (float("nan"), False, False),
    ],
)
def test_a_win_needs_more_than_noise(ratio: float, dropped: bool, won: bool) -> None:
    """A challenger wins from a gain of 3 % on, and never when it was dropped."""
    assert Race(ratio, dropped=dropped).won is won


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5, 8, 11])
def test_both_plans_run_the_same_steps(noise: Store, samples: int) -> None:
    """Few samples or many, both plans are measured for exactly as many steps as asked for."""
    best, challenger = scripted(noise, 1.0), scripted(noise, 1.0)
    outcome = race(best, challenger, samples)
    assert len(best.seconds) == len(challenger.seconds) == samples
    assert outcome == Race(1.0, dropped=False)


def test_the_plans_take_turns(noise: Store) -> None:
    """Both run in blocks, A B, B A, A B, B A, so that a drift of the machine hits both alike."""
    best, challenger, log = pair(noise, 0.001)
    race(best, challenger, 2 * BLOCKS)
    turns = ("best", "challenger", "challenger", "best", "best", "challenger", "challenger", "best")
    assert log == [(name, 2) for name in turns]


def test_a_slow_challenger_is_dropped_early(noise: Store) -> None:
    """A challenger whose steps take far longer is given up after two pairs, and has not won."""
    best, challenger, log = pair(noise, 1000.0)
    outcome = race(best, challenger, 2 * BLOCKS)
    assert outcome.dropped
    assert not outcome.won
    assert outcome.ratio < DROP_BELOW
    assert [name for name, _ in log] == ["best", "challenger", "challenger", "best"]
    assert len(challenger.seconds) == len(best.seconds) == 4


def test_a_fast_challenger_wins(noise: Store) -> None:
    """A challenger whose steps take far less wins after all its steps."""
    best, challenger, _ = pair(noise, 0.001)
    outcome = race(best, challenger, 2 * BLOCKS)
    assert outcome.won
    assert outcome.ratio > GAIN
    assert len(challenger.seconds) == 2 * BLOCKS


@pytest.mark.parametrize(
    ("cost", "dropped", "steps"), [(1 / DROP_BELOW + 1e-6, True, 4), (1.17, False, 8), (1.0, False, 8)]
)
def test_the_border_of_dropping(noise: Store, cost: float, dropped: bool, steps: int) -> None:
    """A challenger is dropped below 85 % of the best plan's speed, and measured to the end from there on."""
    challenger = scripted(noise, cost)
    outcome = race(scripted(noise, 1.0), challenger, 8)
    assert outcome.dropped is dropped
    assert len(challenger.seconds) == steps


class Hiccup(Scripted):
    """A contender with one very slow block at first."""

    def _run(self, steps: int) -> list[float]:
        return [100.0 if not self.seconds else self.cost] * steps


def test_one_slow_block_drops_nobody(noise: Store) -> None:
    """A single disturbed pair neither drops a challenger nor takes its win, because the median decides."""
    challenger = Hiccup(SPEC, OWN, noise)
    challenger.cost = 0.5
    outcome = race(scripted(noise, 1.0), challenger, 8)
    assert not outcome.dropped
    assert outcome.won


def test_a_contender_trains(noise: Store) -> None:
    """Measured steps are real: weights change, losses stay finite, epochs follow one another without end."""
    contender = Contender(SPEC, OWN, noise)
    before = [weights.clone() for weights in contender._step.model.parameters()]
    contender.warm_up(60)
    assert contender.seconds == []
    assert contender.step_s > 0
    assert len(contender.measure(6)) == 6  # an epoch has 4 steps
    assert len(contender.seconds) == 6
    assert all(seconds > 0 for seconds in contender.seconds)
    after = list(contender._step.model.parameters())
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert all(bool(weights.isfinite().all()) for weights in after)
    assert next(iter(contender._step.optimizer.state.values()))["step"] == WARM_UP + 6


def test_a_slow_plan_is_not_warmed_up_for_long(noise: Store) -> None:
    """After the seconds for it no further step of the warm-up is begun, but one always is."""
    contender = Contender(SPEC, OWN, noise)
    contender.warm_up(0)
    assert next(iter(contender._step.optimizer.state.values()))["step"] == 1
    assert contender.step_s > 0


@pytest.mark.parametrize("threads", [1, 2])
def test_a_contender_runs_with_the_threads_of_its_plan(noise: Store, threads: int) -> None:
    """Each turn sets torch's threads, which the other plan may have changed."""
    torch.set_num_threads(3)
    Contender(SPEC, replace(OWN, threads=threads), noise).measure(1)
    assert torch.get_num_threads() == threads


def test_the_prediction_is_steps_and_validation(noise: Store) -> None:
    """An epoch is predicted as its steps at their median plus its validation; without one, as the steps alone."""
    contender = scripted(noise, 0.0)
    contender.seconds = [1.0, 2.0, 90.0]
    assert contender.step_s == 2.0
    assert contender.predicted_epoch_s() == 4 * 2.0 + 4 * contender._validation_s()
    assert contender._validation_s() > 0
    whole = Scripted(replace(SPEC, validation_samples=0), OWN, noise)
    whole.seconds = [1.0, 2.0, 90.0]
    assert whole.predicted_epoch_s() == 4 * 2.0


def test_equal_plans_have_equal_gradients(noise: Store) -> None:
    """The parity gate lets a plan pass that computes in another layout alone."""
    assert gradients_agree(Contender(SPEC, OWN, noise), LAST)


class Rolled(TrainStep):
    """A step that, in bfloat16, gives each output the gradients of its neighbour."""

    def gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        loss = super().gradients(images, labels)
        if self.plan.precision == "bfloat16":
            for weights in self.model.parameters():
                if weights.grad is not None:
                    weights.grad = weights.grad.roll(1, 0)
        return loss


class Broken(TrainStep):
    """A step whose bfloat16 computes nothing but NaN."""

    def logits(self, images: Tensor) -> Tensor:
        logits = super().logits(images)
        return logits * float("nan") if self.plan.precision == "bfloat16" else logits


class Reversed(TrainStep):
    """A step whose bfloat16 has the wrong sign."""

    def logits(self, images: Tensor) -> Tensor:
        logits = super().logits(images)
        return -logits if self.plan.precision == "bfloat16" else logits


@pytest.mark.parametrize("doctored", [Rolled, Broken, Reversed])
def test_other_gradients_are_noticed(noise: Store, monkeypatch: pytest.MonkeyPatch, doctored: type[TrainStep]) -> None:
    """The parity gate refuses gradients of the wrong weights, NaN, and gradients that point the other way."""
    monkeypatch.setattr(measure, "TrainStep", doctored)
    assert not gradients_agree(Contender(SPEC, LAST, noise), BFLOAT16)


class Searching:
    """A search in this process, and what its journal says."""

    def __init__(self, store: Store, directory: Path, spec: TrainSpec = SPEC, own: Plan = OWN) -> None:
        request = CalibrationRequest(
            spec=spec, baseline=own, threads=(1, 2), samples=4, seconds=600, store=store.info.path
        )
        self._writer = JournalWriter(directory / "journal", "run")
        self._reader = JournalReader(directory / "journal", "run")
        self.search = Search(request, store, self._writer, lambda: False, time.perf_counter(), request.seconds)

    def records(self, kind: str) -> list[Record]:
        """Return the records of a kind since the last call."""
        return [record for record in self._reader.read() if record.kind == kind]


def test_refused_gradients_leave_the_best_plan(noise: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A plan whose gradients differ is rejected before it is measured, and the best plan stays."""
    monkeypatch.setattr(measure, "TrainStep", Rolled)
    searching = Searching(noise, tmp_path)
    best = Contender(SPEC, OWN, noise)
    assert _try(searching.search, best, BFLOAT16) is best
    (reject,) = searching.records("reject")
    assert reject.payload["plan"] == asdict(BFLOAT16)


class Costed(Scripted):
    """A contender whose steps cost what a table says of its plan."""

    def __init__(self, costs: dict[Plan, float], spec: TrainSpec, plan: Plan, store: Store) -> None:
        super().__init__(spec, plan, store)
        self.cost = costs.get(plan, 2.0)


def improvements(
    noise: Store, monkeypatch: pytest.MonkeyPatch, directory: Path, costs: dict[Plan, float]
) -> list[dict[str, JsonValue]]:
    """Search with scripted costs (2 s a step where `costs` is silent) and return the improvements in order.

    The C library's allocator is left alone, because it could not be put back for the tests that follow, and the
    parity gate, which has tests of its own, is open.
    """
    monkeypatch.setattr(measure, "Contender", partial(Costed, costs))
    monkeypatch.setattr(measure, "gradients_agree", lambda *_: True)
    monkeypatch.setattr(training_step, "tune_allocator", lambda: True)
    searching = Searching(noise, directory, replace(SPEC, validation_samples=0))
    _search(searching.search)
    assert searching.search.complete
    return [record.payload for record in searching.records("improve")]


def test_the_fastest_plan_is_the_last_improvement(
    noise: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each knob starts from what the one before it found, and the last improvement is the fastest plan."""
    fastest = replace(BFLOAT16, allocator="tuned", threads=2)
    costs = {OWN: 1.0, TUNED: 0.9, replace(fastest, threads=1): 0.7, fastest: 0.5}
    found = improvements(noise, monkeypatch, tmp_path, costs)
    assert [payload["predicted_epoch_s"] for payload in found] == [4.0, 3.6, 2.8, 2.0, 2.0]
    assert found[-1]["plan"] == asdict(fastest)


def test_a_slower_allocator_is_not_chosen(noise: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no plan with the tuned allocator is faster than the user's own, the user's own is chosen."""
    *_, chosen = improvements(noise, monkeypatch, tmp_path, {OWN: 1.0})
    assert chosen["plan"] == asdict(OWN)
    assert chosen["predicted_epoch_s"] == 4.0


def test_an_improvement_improves_on_all_before(noise: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whenever a search ends, its last improvement is the fastest plan until then.

    Where tuning the allocator slows every plan down, a plan that beats only tuned ones is no improvement.
    """
    costs = {OWN: 1.0, replace(LAST, allocator="tuned"): 1.8, replace(BFLOAT16, allocator="tuned"): 1.5}
    found = improvements(noise, monkeypatch, tmp_path, costs)
    assert all(payload["plan"] == asdict(OWN) for payload in found)
