"""Classes that are not equally frequent: balanced passes over the training samples, and weights for the loss.

Random numbers are keyed by (seed, turn, sample), so that neither plan, workers nor a resumed step change what is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.contract.spec import TrainSpec
from preflight.errors import InvalidConfig
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import read_train_labels
from training.data.split import Split, split

if TYPE_CHECKING:
    from torch import Tensor

SUBSET_SEED: Final = 0
"""Seed of the draw of `train_samples`: trainings with other seeds use the same samples, to be comparable."""


def is_balanced(spec: TrainSpec) -> bool:
    """Whether a spec asks for something that every class needs training samples for."""
    return spec.class_weights == "balanced" or spec.sampler == "balanced"


def require_every_class(spec: TrainSpec, info: DatasetInfo) -> None:
    """Refuse to balance classes of which one has no training sample; without torch, and so before anything is measured.

    `train_samples` may leave out a class that is there: only `class_counts` sees that.

    Raises:
        InvalidConfig: a class has no training sample.
        DatasetError: the store cannot be read.
    """
    if is_balanced(spec):
        import numpy as np

        available = split(spec, info).available
        counts = np.bincount(read_train_labels(info.path)[:available], minlength=info.classes)
        _require_samples(spec, info, counts.tolist())


def class_counts(spec: TrainSpec, info: DatasetInfo, labels: Tensor) -> Tensor:
    """Return how many samples of each class train, int64 [classes]; `labels` [N] are those of all training samples.

    Raises:
        InvalidConfig: a class has none.
    """
    found = labels[training_samples(split(spec, info))].long().bincount(minlength=info.classes)
    _require_samples(spec, info, found.tolist())
    return found


def class_weights(spec: TrainSpec, info: DatasetInfo, labels: Tensor) -> Tensor | None:
    """Return each class's weight in the loss, float32 [classes]: N / (classes * samples of the class); None: all alike.

    These are the "balanced" weights of scikit-learn (King and Zeng 2001, "Logistic Regression in Rare Events Data").
    Their mean over the samples that train is 1, so that the learning rate keeps its meaning. Raises as `class_counts`.
    """
    if spec.class_weights == "none":
        return None
    counts = class_counts(spec, info, labels).double()
    return (counts.sum() / (len(counts) * counts)).float()


def training_samples(parts: Split) -> Tensor:
    """Return the numbers of the samples that train, int64 [train]: all that do not validate, or a draw of them."""
    import torch

    from training.data.counter_rng import shuffle

    if parts.train == parts.available:
        return torch.arange(parts.available)
    return shuffle(SUBSET_SEED, 0, parts.available)[: parts.train]


class BalancedPasses:
    """Passes over the training samples in which each class is drawn equally often.

    The classes take turns. A class gives its samples in a random order, each once, then all of them in another one: a
    rare class repeats its samples within a pass, and of a frequent one successive passes draw different samples.
    """

    def __init__(self, spec: TrainSpec, info: DatasetInfo, labels: Tensor) -> None:
        """Draw from the samples that train; `labels` [N] are those of all training samples.

        Raises:
            InvalidConfig: a class has no samples.
        """
        samples = training_samples(split(spec, info))
        self._seed, self._train, self._stride = spec.seed, len(samples), len(labels)
        self._counts = class_counts(spec, info, labels)
        self._members = samples[labels[samples].long().argsort(stable=True)]
        self._starts = self._counts.cumsum(0) - self._counts

    def draws(self, number: int) -> Tensor:
        """Return the draws of a pass (from 0), int64 [train]: turn * N + sample, N being all training samples.

        A sample's turn counts how often its class has given all of its samples, so that no draw occurs twice.
        """
        import torch

        from training.data.counter_rng import shuffle, turn_hashes

        classes, counts = len(self._counts), self._counts
        begin, end = number * self._train, (number + 1) * self._train
        labels = torch.arange(classes)
        first = (begin + (labels - begin) % classes) // classes // counts
        last = (end - 1 - (end - 1 - labels) % classes) // classes // counts
        # Each turn of a class that this pass touches is shuffled as a whole.
        sizes = (last - first + 1).clamp_(min=0) * counts
        bases = sizes.cumsum(0) - sizes
        owner = labels.repeat_interleave(sizes)
        within = torch.arange(len(owner)) - bases[owner]
        turns = first[owner] + within // counts[owner]
        members = self._members[self._starts[owner] + within % counts[owner]]
        by_hash = turn_hashes(self._seed, turns, members).argsort(stable=True)
        blocks = torch.arange(len(owner)) - within % counts[owner]
        members = members[by_hash[blocks[by_hash].argsort(stable=True)]]
        drawn = torch.arange(begin, end)
        label, place = drawn % classes, drawn // classes
        turn = place // counts[label]
        found = members[bases[label] + (turn - first[label]) * counts[label] + place % counts[label]]
        return (found + turn * self._stride)[shuffle(self._seed, number, self._train)]


def _require_samples(spec: TrainSpec, info: DatasetInfo, counts: list[int]) -> None:
    missing = [label for label, count in enumerate(counts) if not count]
    if not missing:
        return
    field = "class_weights" if spec.class_weights == "balanced" else "sampler"
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    raise InvalidConfig(
        f"{field} is 'balanced', but class {missing[0]}{more} of {info.name} has no sample among the {sum(counts)} to "
        f"train on; add samples of it, hold fewer out, or leave {field} out",
        field=field,
    )
