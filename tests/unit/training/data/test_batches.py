"""Training batches: which samples, in which order, and that no plan changes them."""

import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from preflight.contract.plan import MemoryFormat, Plan
from preflight.contract.spec import Augmentation, TrainSpec
from training.data.augmentation.augment import augment
from training.data.batches import Batches, EpochOrder, StoreDataset, normalise
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import open_dataset
from training.data.split import Split

pytestmark = pytest.mark.usefixtures("one_torch_thread")

EVERYTHING = Augmentation(
    rotate_degrees=15.0, translate=0.1, noise_probability=0.05, dots_probability=0.5, blur_sigma=1.0,
    erode_probability=0.3, dilate_probability=0.3,
)  # fmt: skip


SPEC = TrainSpec(dataset="digits", model="cnn", augmentation=EVERYTHING, seed=3)


@given(seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10_000), train=st.integers(1, 2000), data=st.data())
@settings(deadline=None)
def test_an_epoch_takes_no_sample_twice(seed: int, epoch: int, train: int, data: st.DataObject) -> None:
    """Full batches of different training samples, as many as there are; less than one batch is left out."""
    batch_size = data.draw(st.integers(1, train))
    order = EpochOrder(seed, batch_size, parts_of(train, batch_size))
    order.epoch = epoch
    numbers, batches = zip(*order, strict=True)
    assert {*numbers} == {epoch}
    assert [len(samples) for samples in batches] == [batch_size] * (train // batch_size) == [batch_size] * len(order)
    taken = torch.cat(batches)
    assert taken.dtype == torch.int64
    assert len(taken.unique()) == len(taken)
    assert 0 <= int(taken.min()) <= int(taken.max()) < train


def test_each_epoch_and_seed_has_its_own_order() -> None:
    """Another epoch or seed shuffles anew, the same ones alike."""

    def taken(seed: int, epoch: int) -> list[int]:
        order = EpochOrder(seed, 100, parts_of(1000, 100))
        order.epoch = epoch
        return torch.cat([samples for _, samples in order]).tolist()

    assert taken(0, 0) == taken(0, 0)
    assert len({tuple(taken(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert sorted(taken(0, 0)) == list(range(1000))


@pytest.mark.parametrize("samples", [250, 1000, 3300])
def test_passes_follow_one_another_however_long_an_epoch_is(samples: int) -> None:
    """Epochs of a quarter, one or several passes cut the same sequence; each pass takes every sample once."""
    parts = parts_of(1000, 100, samples)
    order, found = EpochOrder(5, 100, parts), []
    for order.epoch in range(4):
        batches = list(order)
        assert len(batches) == len(order) == parts.steps == samples // 100
        found += batches
    expected = []
    for each in range(len(found) // 10 + 1):
        whole = EpochOrder(5, 100, parts_of(1000, 100))
        whole.epoch = each
        expected += list(whole)
    for (number, taken), (same_number, same) in zip(found, expected, strict=False):
        assert number == same_number
        assert torch.equal(taken, same)


def test_a_repeated_sample_is_changed_anew(digits_store: DatasetInfo) -> None:
    """Two passes in one epoch are the same batches as in two epochs, augmentation included."""
    spec, plan = replace(SPEC, batch_size=450), Plan(threads=1, micro_batch=450)
    assert equal(
        all_batches(digits_store, spec, plan, 2), all_batches(digits_store, replace(spec, epoch_samples=2700), plan, 1)
    )


def parts_of(train: int, batch_size: int, samples: int | None = None) -> Split:
    steps = (train if samples is None else samples) // batch_size
    return Split(
        train=train, available=train, validation=0, steps=steps, pass_steps=train // batch_size, total_steps=steps
    )  # fmt: skip


def drawn(seed: int, samples: int) -> list[list[int]]:
    """Return the samples of each step of a pass over so many of 1,350, in batches of 50."""
    parts = replace(parts_of(samples, 50), available=1350)
    return [numbers.tolist() for _, numbers in EpochOrder(seed, 50, parts)]


def test_the_samples_of_a_small_training_are_the_same_whatever_the_seed() -> None:
    """They are drawn from all, a smaller number is a part of a larger one, and only their order is the seed's."""
    few, others, more = drawn(3, 200), drawn(4, 200), drawn(3, 400)
    used = {number for batch in few for number in batch}
    assert few != others
    assert used == {number for batch in others for number in batch}
    assert len(used) == 200
    assert used < {number for batch in more for number in batch} <= set(range(1350))
    assert max(used) > 1_000


def test_a_small_training_takes_a_part_of_each_class(digits_store: DatasetInfo) -> None:
    """Its batches are those of the drawn samples, which no more follow the order of the data set."""
    spec = replace(SPEC, batch_size=50, train_samples=200)
    labels = torch.cat([labels for _, labels in all_batches(digits_store, spec, Plan(threads=1, micro_batch=50), 1)])
    assert len(labels) == 200
    assert int(labels.bincount(minlength=10).min()) >= 10


def all_batches(info: DatasetInfo, spec: TrainSpec, plan: Plan, epochs: int) -> list[tuple[Tensor, Tensor]]:
    batches = Batches(open_dataset(info.path), spec, plan)
    return [batch for epoch in range(epochs) for batch in batches.of(epoch)]


def equal(some: list[tuple[Tensor, Tensor]], others: list[tuple[Tensor, Tensor]]) -> bool:
    return len(some) == len(others) and all(
        torch.equal(images, other_images) and torch.equal(labels, other_labels)
        for (images, labels), (other_images, other_labels) in zip(some, others, strict=True)
    )


def test_a_batch_is_what_the_store_holds(digits_store: DatasetInfo) -> None:
    """Images are normalised by the training pixels' mean and deviation; validation samples never occur."""
    store = open_dataset(digits_store.path)
    spec = replace(SPEC, batch_size=50, validation_samples=500, augmentation=Augmentation())
    order = EpochOrder(spec.seed, 50, parts_of(1000, 50))
    for (images, labels), (_, samples) in zip(
        all_batches(digits_store, spec, Plan(threads=1, micro_batch=50), 1), order, strict=True
    ):
        assert int(samples.max()) < 1000
        assert (images.dtype, labels.dtype, images.shape) == (torch.float32, torch.int64, (50, 1, 28, 28))
        exact = (store.train_images[samples].double() - digits_store.mean) / digits_store.std
        assert float((images.double() - exact).abs().max()) < 1e-6
        assert torch.equal(labels, store.train_labels[samples].long())


def test_augmentation_sees_images_from_0_to_1_and_the_epoch(digits_store: DatasetInfo) -> None:
    """What is trained on is `augment` of the stored image, scaled and keyed by seed, epoch and sample."""
    store = open_dataset(digits_store.path)
    spec = replace(SPEC, batch_size=450)
    order = EpochOrder(spec.seed, 450, parts_of(1350, 450))
    for epoch in (0, 1):
        order.epoch = epoch
        batches = Batches(store, spec, Plan(threads=1, micro_batch=450)).of(epoch)
        for (images, _), (_, samples) in zip(batches, order, strict=True):
            pixels = store.train_images[samples].float() / 255
            changed = augment(pixels, EVERYTHING, seed=3, epoch=epoch, samples=samples) * 255
            assert torch.equal(images, normalise(changed, digits_store.mean, digits_store.std, "contiguous"))


@pytest.mark.parametrize(
    "plan",
    [
        Plan(threads=2, micro_batch=7, precision="bfloat16", memory_format="channels_last"),
        Plan(threads=2, micro_batch=300, loader_workers=2, prefetch_factor=2),
    ],
    ids=["micro-batch, precision and layout", "two loader processes"],
)
def test_no_plan_changes_a_batch(digits_store: DatasetInfo, plan: Plan) -> None:
    """Samples, order and every augmentation are bit for bit those of two threads, over two epochs."""
    torch.set_num_threads(2)
    spec = replace(SPEC, batch_size=300)
    expected = all_batches(digits_store, spec, Plan(threads=2, micro_batch=300), 2)
    assert len(expected) == 2 * (1350 // 300)
    assert equal(expected, all_batches(digits_store, spec, plan, 2))


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_images_come_in_the_layout_of_the_plan(memory_format: MemoryFormat) -> None:
    """A channels_last model is fed channels_last images."""
    stored = torch.zeros(4, 3, 5, 6, dtype=torch.uint8)
    images = normalise(stored, 10.0, 2.0, memory_format)
    wanted = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
    assert images.is_contiguous(memory_format=wanted)
    assert bool((images == -5).all())


def test_what_a_loader_worker_is_sent_is_small(digits_store: DatasetInfo) -> None:
    """The data set travels as a path and a few numbers, under 1 KB, and not as 1.2 MB of images."""
    dataset = StoreDataset(digits_store, replace(SPEC, batch_size=200), "contiguous")
    sent = pickle.dumps(dataset)
    assert len(sent) < 1024
    received = pickle.loads(sent)  # noqa: S301 - made above
    samples = torch.tensor([7, 3])
    for found, expected in zip(received[0, samples], dataset[0, samples], strict=True):
        assert torch.equal(found, expected)
