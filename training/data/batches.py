"""Effective batches for training: shuffled or balanced, gathered, augmented and normalised.

Order and augmentation are keyed by (seed, pass, sample), so they depend neither on the plan nor on a resumed step.
The training process gathers from the memory-mapped data, or a DataLoader's workers do, with the same result.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from preflight.contract.plan import MemoryFormat, Plan
from preflight.contract.spec import Augmentation, TrainSpec
from training.data.augmentation.augment import augment
from training.data.class_balance import BalancedPasses, training_samples
from training.data.counter_rng import shuffle
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import PreparedDataset, open_dataset
from training.data.loader import build_loader, iterate
from training.data.read_ahead import ReadAhead
from training.data.split import Split, split
from training.group import ALONE, Group


def normalise(images: Tensor, mean: float, std: float, memory_format: MemoryFormat) -> Tensor:
    """Return uint8 or float images [B, C, H, W] (0..255) as float32 with zero mean and unit variance.

    `mean` and `std` are those of the training pixels on the 0..255 scale.
    """
    layout = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
    return images.to(torch.float32, memory_format=layout).sub_(mean).div_(std)


def gather(
    store: PreparedDataset, draws: Tensor, augmentation: Augmentation, *, seed: int, epoch: int, layout: MemoryFormat
) -> tuple[Tensor, Tensor]:
    """Return training images float32 [B, C, H, W] and labels int64 [B] of `draws` (int64 [B]).

    A draw is a sample's number, or that of a repetition of it, as `BalancedPasses.draws` has them: a repetition has
    another augmentation.
    """
    samples = draws % len(store.train_labels)
    # Indexing would copy element by element.
    images, labels = store.train_images.index_select(0, samples), store.train_labels.index_select(0, samples)
    mean, std = store.info.mean, store.info.std
    if augmentation.active:
        images = augment(images.float().div_(255), augmentation, seed=seed, epoch=epoch, samples=draws).mul_(255)
    return normalise(images, mean, std, layout), labels.long()


class EpochOrder(Sampler[tuple[int, Tensor]]):
    """Yields (pass from 0, draws int64 [batch_size]) of the effective batches `first` to `end` of an epoch.

    A pass takes each sample once at most, in its own order, unless its draws are `balanced`. Passes follow one
    another however long the epochs are: an epoch continues where the last one ended.
    """

    def __init__(
        self, seed: int, batch_size: int, parts: Split, group: Group = ALONE, balanced: BalancedPasses | None = None
    ) -> None:
        """Order the batches of a seed; a rank of `group` gets its share of each."""
        self._group = group
        self._seed = seed
        self._batch_size = batch_size
        self._parts = parts
        self._balanced = balanced
        whole = parts.train == parts.available
        self._drawn = None if whole else training_samples(parts)
        self.epoch = 0
        self.first, self.end = 0, parts.steps

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        position, end = (self.epoch * self._parts.steps + step for step in (self.first, self.end))
        while position < end:
            number, step = divmod(position, self._parts.pass_steps)
            batches = self._pass(number).split(self._batch_size)[
                step : min(self._parts.pass_steps, step + end - position)
            ]
            yield from ((number, self._group.share_of(samples)) for samples in batches)
            position += len(batches)

    def _pass(self, number: int) -> Tensor:
        if self._balanced is not None:
            return self._balanced.draws(number)
        order = shuffle(self._seed, number, self._parts.train)
        return order if self._drawn is None else self._drawn[order]

    def __len__(self) -> int:
        return self.end - self.first


class StoreDataset(Dataset[tuple[Tensor, Tensor]]):
    """Effective batches by their sample numbers, for DataLoader workers.

    Pickles as a path and a few facts: each worker opens the memory-mapped store itself.
    """

    def __init__(self, info: DatasetInfo, spec: TrainSpec, layout: MemoryFormat) -> None:
        """Gather from the store that `info` names, normalised by its mean and standard deviation."""
        self._info = info
        self._spec = spec
        self._layout = layout
        self._opened: tuple[PreparedDataset, ReadAhead] | None = None

    def __getitem__(self, key: tuple[int, Tensor]) -> tuple[Tensor, Tensor]:
        if self._opened is None:
            store = replace(open_dataset(self._info.path), info=self._info)
            self._opened = store, ReadAhead(store.train_images)
        (store, read_ahead), (number, draws) = self._opened, key
        read_ahead.ask(draws % len(store.train_labels))
        return gather(
            store, draws, self._spec.augmentation,
            seed=self._spec.seed, epoch=number, layout=self._layout,
        )  # fmt: skip


class Batches:
    """The training batches of one run; `of(epoch)` yields those of one epoch."""

    def __init__(self, store: PreparedDataset, spec: TrainSpec, plan: Plan, group: Group = ALONE) -> None:
        """Make the batches of a training, or the share of them that a rank of `group` trains on."""
        self._store = store
        self._spec = spec
        self._layout = plan.memory_format
        self._parts = split(spec, store.info)
        balanced = BalancedPasses(spec, store.info, store.train_labels) if spec.sampler == "balanced" else None
        self._order = EpochOrder(spec.seed, spec.batch_size, self._parts, group, balanced)
        dataset = StoreDataset(store.info, spec, plan.memory_format)
        self._loader = build_loader(dataset, self._order, plan) if plan.loader_workers else None
        # Those that validate come last, and are read in order.
        self._read_ahead = ReadAhead(store.train_images[: self._parts.available])
        self._pinned = plan.device == "cuda"

    def of(self, epoch: int, first_step: int = 0, end: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (images float32 [B, C, H, W], labels int64 [B]) for each step of `epoch`, both from 0.

        For a GPU both are in pinned memory. Steps before `first_step` are not gathered, nor those from `end` on, which
        is at most the number of steps.
        """
        order = self._order
        order.epoch, order.first, order.end = epoch, first_step, self._parts.steps if end is None else end
        if self._loader is not None:
            yield from iterate(self._loader)
            return
        for number, draws in self._read_ahead.ahead_of(iter(self._order), len(self._store.train_labels)):
            images, labels = gather(
                self._store, draws, self._spec.augmentation,
                seed=self._spec.seed, epoch=number, layout=self._layout,
            )  # fmt: skip
            # Only memory that the kernel may not move is copied to a GPU while the CPU gathers the next batch.
            yield (images.pin_memory(), labels.pin_memory()) if self._pinned else (images, labels)
