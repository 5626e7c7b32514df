"""Measuring: candidates run real steps under their plans, and a workbench answers what it was asked, no less."""

import itertools
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from calibration.measure import benchmark, candidate
from calibration.measure.benchmark import AT_ONCE, Benchmarker, _peak, _reset_peak
from calibration.measure.candidate import Candidate, gradient_cosine
from calibration.measure.protocol import Measure
from calibration.races.budget import GATE
from calibration.races.evaluation import COSINE
from preflight.container.resources import Quota
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import PreparedDataset, open_dataset, write
from training.data.datasets import LabeledImages, Samples
from training.step.train_step import TrainStep
from training.system import reference_workload

pytestmark = pytest.mark.usefixtures("torch_as_it_was")

SPEC = TrainSpec(dataset="noise", model="cnn", batch_size=8, validation_samples=4)
OWN = Plan(threads=1, micro_batch=8, eval_batch=16)
LAST = replace(OWN, memory_format="channels_last")
BFLOAT16 = replace(OWN, precision="bfloat16")
MIB = 1 << 20


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """Return an open store of 36 random training images; what they show changes no cost."""
    random = np.random.default_rng(0)

    def split(count: int) -> LabeledImages:
        images = random.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
        return LabeledImages(images, random.integers(0, 10, count, dtype=np.uint8))

    path = tmp_path_factory.mktemp("noise") / "noise.safetensors"
    write(path, "noise", Samples(split(36), split(4), classes=10), ())
    return open_dataset(path)


@pytest.fixture
def bench(noise: PreparedDataset) -> Benchmarker:
    """Return a workbench on which nothing is warm."""
    return Benchmarker(SPEC, noise)


def trained(bench: Benchmarker) -> dict[Plan, int]:
    """Return the plans that are warm, and the steps that each was trained for."""
    return {plan: candidate.trained for (plan, _), candidate in bench._candidates.items()}


@pytest.fixture
def quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Quota:
    """Put this process under a quota of a thousandth, with a CPU clock that shows a second more at each look."""
    quota = Quota(Fraction(1, 1000), tmp_path / "cpu.max", 0.1)
    for module in (benchmark, reference_workload):
        monkeypatch.setattr(module, "binding_quota", lambda: quota)
    seconds = itertools.count(1.0)
    monkeypatch.setattr(time, "process_time", lambda: next(seconds))
    return quota


# --- under a quota


def test_everything_is_timed_as_the_quota_grants_it(bench: Benchmarker, quota: Quota) -> None:
    """A second of CPU time takes 1,000 s: of steps, warm or not, a validation, a probe, a reference workload."""
    measured = bench.measure(Measure(plan=OWN, steps=3, warm_up=2))
    assert measured.seconds == pytest.approx([1000.0] * 3, rel=1e-3)
    assert measured.warm == pytest.approx([1000.0] * 2, rel=1e-3)
    assert measured.period_s == quota.period_s
    assert 0 < measured.fetch_s < 3000
    assert bench.validate(OWN, 8).sample_s == pytest.approx(1000.0 / 8, rel=1e-3)
    assert bench.gauge(OWN).seconds == pytest.approx(1000.0, rel=1e-3)
    assert bench.probe(OWN).seconds == pytest.approx(1000.0, rel=1e-3)


def test_without_a_quota_no_period_is_told(bench: Benchmarker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall time is all that counts."""
    monkeypatch.setattr(benchmark, "binding_quota", lambda: None)
    assert bench.measure(Measure(plan=OWN, steps=1, warm_up=0)).period_s is None


# --- candidates


def test_a_candidate_trains(noise: PreparedDataset) -> None:
    """Measured steps are real: weights change, losses stay finite, epochs follow one another without end."""
    candidate = Candidate(SPEC, OWN, noise)
    assert (candidate.run(0), candidate.fetch_s, candidate.trained) == ([], 0.0, 0), "no steps are no seconds"
    before = [weights.clone() for weights in candidate.step.model.parameters()]
    seconds = candidate.run(6)  # an epoch has 4 steps
    assert len(seconds) == candidate.trained == 6
    assert all(second > 0 for second in seconds)
    assert 0 < candidate.fetch_s < sum(seconds)
    after = list(candidate.step.model.parameters())
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert all(bool(weights.isfinite().all()) for weights in after)
    assert next(iter(candidate.step.optimizer.state.values()))["step"] == 6


@pytest.mark.parametrize("threads", [1, 2])
def test_a_candidate_runs_with_the_threads_of_its_plan(noise: PreparedDataset, threads: int) -> None:
    """Each turn sets torch's threads, which the other plan may have changed."""
    torch.set_num_threads(3)
    Candidate(SPEC, replace(OWN, threads=threads), noise).run(1)
    assert torch.get_num_threads() == threads


def test_candidates_see_the_batches_of_training(noise: PreparedDataset) -> None:
    """The first epoch's order comes from the spec's seed, whatever the plan."""
    first, second = (Candidate(SPEC, plan, noise).next_batch() for plan in (OWN, LAST))
    assert torch.equal(first[1], second[1])
    assert torch.equal(first[0], second[0])


# --- the workbench


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_as_many_steps_are_timed_as_asked_for(bench: Benchmarker, steps: int) -> None:
    """Warming up is not counted among them, and trained all the same."""
    measured = bench.measure(Measure(plan=OWN, steps=steps, warm_up=3))
    assert 0 < measured.once_s < sum(measured.seconds)
    assert (len(measured.seconds), len(measured.warm)) == (steps, 3)
    assert all(second > 0 for second in (*measured.seconds, *measured.warm))
    assert 0 < measured.fetch_s < sum(measured.seconds)
    assert measured.peak_bytes > 0
    assert trained(bench) == {OWN: steps + 3}


def test_what_is_warm_is_not_warmed_up_again(bench: Benchmarker) -> None:
    """The second block of a plan goes on where the first ended, with its model and its batches, until it is cleared."""
    bench.measure(Measure(plan=OWN, steps=2, warm_up=3))
    again = bench.measure(Measure(plan=OWN, steps=2, warm_up=3))
    assert again.warm == ()
    assert trained(bench) == {OWN: 7}
    bench.clear()
    assert trained(bench) == {}


def test_the_least_recently_used_plan_makes_room(bench: Benchmarker) -> None:
    """Two are kept ready: the best plan outlives its challengers, which take turns with it."""
    tuned = [replace(OWN, eval_batch=size) for size in (1, 2, 3)]
    for challenger in tuned:
        for plan in (OWN, challenger):
            bench.measure(Measure(plan=plan, steps=1, warm_up=1))
            assert len(trained(bench)) <= AT_ONCE
    assert list(trained(bench)) == [OWN, tuned[-1]]
    assert trained(bench)[OWN] == 4
    assert bench.measure(Measure(plan=tuned[0], steps=1, warm_up=1)).warm != ()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_gauge_runs_on_the_threads_of_the_plan(
    bench: Benchmarker, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Its work is done on them, and what the process had before is as it was."""
    backward, seen = torch.autograd.backward, []

    def heard(loss: Tensor) -> None:
        seen.append(torch.get_num_threads())
        backward(loss)

    monkeypatch.setattr(torch.autograd, "backward", heard)
    torch.set_num_threads(3)
    drawn = torch.get_rng_state()
    assert 0 < bench.gauge(replace(OWN, threads=threads)).seconds < 60
    assert (set(seen), torch.get_num_threads()) == ({threads}, 3)
    assert torch.equal(torch.get_rng_state(), drawn), "a training that is gauged draws the same numbers"


def test_a_probe_trains_on_one_micro_batch(bench: Benchmarker) -> None:
    """It forgets what was warm, whose memory would count, and leaves nothing behind."""
    bench.measure(Measure(plan=OWN, steps=1, warm_up=1))
    probed = bench.probe(replace(OWN, micro_batch=2))
    assert probed.peak_bytes > 0
    assert probed.seconds > 0
    assert trained(bench) == {}


def test_an_evaluation_is_timed_without_training(bench: Benchmarker, noise: PreparedDataset) -> None:
    """On as many samples as there are at most, with the model of a plan that may be warm, which does not learn."""
    bench.measure(Measure(plan=OWN, steps=1, warm_up=1))
    model = bench._candidates[OWN, SPEC.batch_size].step.model
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    for samples in (1, 20, 10_000):
        assert bench.validate(OWN, samples).sample_s > 0
    assert trained(bench) == {OWN: 2}
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name])
    assert bench.validate(LAST, 5).sample_s > 0
    assert noise.info.train_count == 36


def test_a_peak_is_what_was_resident_since_the_reset() -> None:
    """Memory that was given back before does not count, and what is used meanwhile does."""
    _reset_peak()
    before = _peak()
    large = torch.ones(200 * MIB, dtype=torch.uint8)
    assert _peak() >= before + 190 * MIB
    del large
    assert _peak() >= before + 190 * MIB
    _reset_peak()
    assert _peak() < before + 100 * MIB


def test_mapped_files_are_no_memory(tmp_path: Path) -> None:
    """The kernel takes them back under pressure."""
    path = tmp_path / "mapped"
    path.write_bytes(bytes(100 * MIB))
    _reset_peak()
    before = _peak()
    mapped = np.memmap(path, dtype=np.uint8, mode="r")
    assert int(mapped.sum()) == 0
    assert _peak() < before + 50 * MIB


# --- the parity gate


def test_equal_plans_have_equal_gradients(noise: PreparedDataset) -> None:
    """Another layout computes the same."""
    assert gradient_cosine(Candidate(SPEC, OWN, noise), LAST, noise, GATE[0]) > 0.999


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
def test_other_gradients_are_noticed(
    bench: Benchmarker, monkeypatch: pytest.MonkeyPatch, doctored: type[TrainStep]
) -> None:
    """The gate tells gradients of the wrong weights, NaN, and gradients that point the other way; in numbers."""
    monkeypatch.setattr(candidate, "TrainStep", doctored)
    cosine = bench.check(BFLOAT16, OWN, *GATE).cosine
    assert -1.01 <= cosine <= COSINE
    assert trained(bench) == {}


@pytest.mark.parametrize("batch_size", [32, 128])
def test_bfloat16_passes_the_parity_gate(digits_store: DatasetInfo, batch_size: int) -> None:
    """The gradients of cnn in bfloat16 on real digits agree with float32, whatever the seed."""
    torch.set_num_threads(1)
    digits = open_dataset(digits_store.path)
    reference = replace(OWN, micro_batch=batch_size, memory_format="channels_last")
    for seed in range(3):
        spec = TrainSpec(dataset="digits", model="cnn", batch_size=batch_size, seed=seed)
        bfloat16 = replace(reference, precision="bfloat16")
        assert Benchmarker(spec, digits).check(bfloat16, reference, *GATE).cosine > COSINE
