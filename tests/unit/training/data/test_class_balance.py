"""Balanced passes and class weights: what is drawn, how often, and what cannot be balanced."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

from preflight.contract.plan import Plan
from preflight.contract.spec import Augmentation, TrainSpec
from preflight.errors import InvalidConfig
from training.data.batches import Batches, EpochOrder, gather
from training.data.class_balance import BalancedPasses, class_weights, require_every_class
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import open_dataset, write
from training.data.datasets import LabeledImages, Samples
from training.data.split import split

SPEC = TrainSpec(dataset="rare", model="cnn", batch_size=8, validation_samples=0, sampler="balanced", seed=5)
WEIGHTED = replace(SPEC, sampler="shuffle", class_weights="balanced")


def store_of(directory: Path, labels: list[int], classes: int) -> DatasetInfo:
    """Return the store of a data set whose training samples have these labels, and images of noise."""
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 1, 28, 28), dtype=np.uint8)
    samples = LabeledImages(images, np.array(labels, dtype=np.uint8))
    path = directory / "rare.safetensors"
    return write(path, "rare", Samples(train=samples, test=samples, classes=classes), ())


def info_of(train: int, classes: int) -> DatasetInfo:
    return DatasetInfo(
        name="rare", path=Path(), shape=(1, 28, 28), classes=classes, train_count=train, test_count=1, mean=1.0,
        std=1.0, sources=(),
    )  # fmt: skip


@given(
    counts=st.lists(st.integers(1, 40), min_size=2, max_size=8), seed=st.integers(0, 2**63 - 1), data=st.data(),
)  # fmt: skip
def test_classes_take_turns_and_give_all_of_their_samples(counts: list[int], seed: int, data: st.DataObject) -> None:
    """Over any number of passes no two classes differ by more than a draw, and no two samples of a class by a turn."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.from_numpy(np.random.default_rng(len(labels)).permutation(len(labels)))].to(torch.uint8)
    passes = BalancedPasses(replace(SPEC, batch_size=1, seed=seed), info_of(len(labels), len(counts)), labels)
    drawn: list[int] = []
    for number in range(data.draw(st.integers(1, 4))):
        some = passes.draws(number)
        assert torch.equal(some, passes.draws(number))
        drawn += some.tolist()
        assert len(set(drawn)) == len(drawn) == (number + 1) * len(labels)
    samples = [draw % len(labels) for draw in drawn]
    of_class = Counter(int(labels[sample]) for sample in samples)
    assert max(of_class.values()) - min(of_class[label] for label in range(len(counts))) <= 1
    of_sample = Counter(samples)
    for label in range(len(counts)):
        times = [of_sample[number] for number in range(len(labels)) if labels[number] == label]
        assert max(times) - min(times) <= 1


def test_each_pass_and_seed_has_its_own_draws(tmp_path: Path) -> None:
    """And of a frequent class a pass draws samples that the one before it did not."""
    info = store_of(tmp_path, [0] * 300 + [1] * 20, 2)
    labels = open_dataset(info.path).train_labels
    one, other = (BalancedPasses(replace(SPEC, seed=seed), info, labels) for seed in (1, 2))
    first, second = (set(one.draws(number).tolist()) for number in (0, 1))
    assert not first & second
    assert {draw for draw in first if draw < 300} == {draw for draw in first if draw % 320 < 300}
    assert first != set(other.draws(0).tolist())
    assert one.draws(0).tolist() != sorted(first)


def test_a_repetition_of_a_sample_is_augmented_anew(tmp_path: Path) -> None:
    """Else a rare sample would be seen as one picture many times in a pass."""
    info = store_of(tmp_path, [0] * 60 + [1] * 4, 2)
    store, noisy = open_dataset(info.path), Augmentation(noise_probability=0.3)
    draws = torch.tensor([63, 63 + 64, 63 + 128, 63])
    images, labels = gather(store, draws, noisy, seed=5, epoch=0, layout="contiguous")
    assert labels.tolist() == [1] * 4
    assert len({image.numpy().tobytes() for image in images}) == 3
    assert torch.equal(images[0], images[3])


def test_batches_are_those_of_the_balanced_passes(tmp_path: Path, torch_as_it_was: None) -> None:  # noqa: ARG001
    """In the process itself and in a loader's worker, and from any step of an epoch on."""
    info = store_of(tmp_path, [0] * 60 + [1] * 4, 2)
    store = open_dataset(info.path)
    plain, loader = Plan(threads=1, micro_batch=8), Plan(threads=1, micro_batch=8, loader_workers=1)
    spec = replace(SPEC, augmentation=Augmentation(rotate_degrees=10.0))
    found = [Batches(store, spec, plan) for plan in (plain, loader)]
    for epoch, first in ((0, 0), (1, 0), (1, 5)):
        one, other = (list(batches.of(epoch, first)) for batches in found)
        assert len(one) == 8 - first
        for (images, labels), (same_images, same_labels) in zip(one, other, strict=True):
            assert torch.equal(images, same_images)
            assert torch.equal(labels, same_labels)
    all_labels = torch.cat([labels for _, labels in found[0].of(0)])
    assert all_labels.bincount().tolist() == [32, 32]


def test_samples_that_validate_or_are_not_used_are_never_drawn(tmp_path: Path) -> None:
    """Held out are the last ones, and of the rest a part is drawn for all seeds alike."""
    info = store_of(tmp_path, [0, 1] * 50, 2)
    labels = open_dataset(info.path).train_labels
    spec = replace(SPEC, validation_samples=20, train_samples=40)
    parts = split(spec, info)
    drawn = [{draw % 100 for draw in BalancedPasses(spec, info, labels).draws(number).tolist()} for number in (0, 1, 2)]
    allowed = {int(number) for _, batch in EpochOrder(1, 8, parts) for number in batch}
    assert set().union(*drawn) <= allowed
    assert len(allowed) == 40
    assert max(allowed) < 80


@pytest.mark.parametrize("counts", [[50, 50], [90, 9, 1], [1, 1, 1, 200]])
def test_weights_are_those_of_scikit_learn(counts: list[int]) -> None:
    """And their mean over the samples is 1."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).to(torch.uint8)
    info = info_of(len(labels), len(counts))
    weights = class_weights(WEIGHTED, info, labels)
    assert weights is not None
    expected = compute_class_weight("balanced", classes=np.arange(len(counts)), y=labels.numpy())
    assert weights.tolist() == pytest.approx(expected.tolist())
    assert float(weights[labels.long()].mean()) == pytest.approx(1.0)
    assert class_weights(SPEC, info, labels) is None


@pytest.mark.parametrize(("spec", "field"), [(SPEC, "sampler"), (WEIGHTED, "class_weights")])
def test_a_class_without_training_samples_is_refused(tmp_path: Path, spec: TrainSpec, field: str) -> None:
    """Before anything is measured where no sample has it, when the training begins where a draw leaves it out."""
    info = store_of(tmp_path, [0] * 90 + [2] * 10, 4)
    says = rf"^{field} is 'balanced', but class 1 \(and 1 more\) of rare has no sample among the 100 to train on; add"
    with pytest.raises(InvalidConfig, match=says) as caught:
        require_every_class(spec, info)
    assert caught.value.field == field
    info = store_of(tmp_path, [0] * 99 + [1], 2)
    store = open_dataset(info.path)
    require_every_class(spec, info)
    few = replace(spec, train_samples=20)
    require_every_class(few, info)
    with pytest.raises(InvalidConfig, match=rf"^{field} is 'balanced', but class 1 of rare has no sample among the 20"):
        class_weights(few, info, store.train_labels)
        Batches(store, few, Plan(threads=1, micro_batch=8))
    with pytest.raises(InvalidConfig, match="among the 99 to train on"):
        require_every_class(replace(spec, validation_samples=1), info)
    require_every_class(replace(spec, validation_samples=1, sampler="shuffle", class_weights="none"), info)


def test_one_class_alone_is_refused(tmp_path: Path) -> None:
    """Of two, the other one has no samples."""
    with pytest.raises(InvalidConfig, match="class 1 of rare has no sample among the 100"):
        require_every_class(WEIGHTED, store_of(tmp_path, [0] * 100, 2))
