"""Accuracy, loss and figures of each class of a model on samples it is not trained on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from preflight.contract.confidence import Confidence
from preflight.contract.spec import TrainSpec
from training.artifacts.confidence import measure_confidence
from training.artifacts.metrics import ClassScore, macro_f1
from training.artifacts.predictions import allocate_probabilities
from training.data.augmentation.augment import augment
from training.data.batches import normalise
from training.data.dataset_store import PreparedDataset
from training.data.split import split
from training.step.train_step import TrainStep

MEASURED: Final = 5_000
"""Most samples on which the confidence is measured."""
MEASURED_BYTES: Final = 64 << 20
"""Most bytes of their pixels as float32."""
UNSEEN: Final = 1 << 30
"""Number of an epoch that no training reaches: its augmentations are drawn from it."""
SIGMAS: Final = 3
"""Standard deviations above the share of the largest class up to which an accuracy may be luck."""


@dataclass(frozen=True, slots=True)
class Score:
    """Result of an evaluation."""

    accuracy: float
    """Share of the samples whose largest logit is the right one, 0..1."""
    loss: float
    """Mean cross entropy, without label smoothing."""
    samples: int
    classes: tuple[ClassScore, ...] = ()
    """Figures of each class, in the order of the class numbers."""

    @property
    def macro_f1(self) -> float:
        """Mean of the F1 scores of the classes."""
        return macro_f1(self.classes)


def evaluate(
    step: TrainStep, images: Tensor, labels: Tensor, mean: float, std: float, probabilities: Tensor | None = None
) -> Score:
    """Score the step's model on uint8 images [N, C, H, W] and uint8 labels [N], N >= 1.

    The class probabilities of each sample go to `probabilities`, float32 [N, classes] on the CPU, where that is given.
    """
    return _score(labels, _sums(step, images, labels, mean, std, probabilities))


def measure(step: TrainStep, store: PreparedDataset) -> Confidence | None:
    """Return the confidence of the step's model; None: there are too few samples to measure it.

    It is measured on the validation samples. Where none are held out, training samples stand for them, augmented in a
    way that the training has not seen: a network that has passed over each sample once or twice knows few by heart.
    """
    held_out = split(step.spec, store.info).validation
    if held_out:
        images, labels = store.train_images[-held_out:][:MEASURED], store.train_labels[-held_out:][:MEASURED]
    else:
        images, labels = _augmented(step.spec, store)
    probabilities = allocate_probabilities(len(labels), step.classes)
    if probabilities is None or not len(labels):
        return None
    evaluate(step, images, labels, store.info.mean, store.info.std, probabilities)
    return measure_confidence(probabilities.numpy(), labels.numpy(), "validation" if held_out else "training")


def _augmented(spec: TrainSpec, store: PreparedDataset) -> tuple[Tensor, Tensor]:
    """Return training images, uint8 or float32 [N, C, H, W], and labels [N], from all over the training set."""
    channels, height, width = store.info.shape
    count = min(MEASURED, len(store.train_labels), MEASURED_BYTES // (4 * channels * height * width))
    samples = torch.arange(count) * (len(store.train_labels) // max(1, count))
    images, labels = store.train_images.index_select(0, samples), store.train_labels.index_select(0, samples)
    if spec.augmentation.active:
        scaled = images.float().div_(255)
        images = augment(scaled, spec.augmentation, seed=spec.seed, epoch=UNSEEN, samples=samples).mul_(255)
    return images, labels


def evaluate_together(step: TrainStep, images: Tensor, labels: Tensor, mean: float, std: float) -> Score:
    """Score the leader's model as `evaluate` does; each rank scores a part, and all get the same score."""
    group = step.group
    group.share_buffers(step.model)
    return _score(labels, group.sum(_sums(step, group.share_of(images), group.share_of(labels), mean, std, None)))


def _score(labels: Tensor, sums: Sequence[float]) -> Score:
    """Return the score of the `sums` of all samples, which have these `labels`."""
    loss, *counts = sums
    classes = len(counts) // 2
    samples, right, predicted = labels.bincount(minlength=classes).tolist(), counts[:classes], counts[classes:]
    scores = tuple(
        ClassScore(label=label, samples=samples[label], right=int(right[label]), predicted=int(predicted[label]))
        for label in range(classes)
    )
    return Score(accuracy=sum(right) / len(labels), loss=loss / len(labels), samples=len(labels), classes=scores)


@torch.inference_mode()
def _sums(
    step: TrainStep, images: Tensor, labels: Tensor, mean: float, std: float, probabilities: Tensor | None
) -> list[float]:
    """Return the sum of the losses; then, for each class, the correct samples; then those predicted as it."""
    step.model.eval()
    loss, done = 0.0, 0
    counts = torch.zeros(2, step.classes, dtype=torch.int64, device=step.device)
    size = step.plan.eval_batch
    if not len(labels):  # more ranks than samples
        return [loss, *counts.flatten().tolist()]
    for some_images, some_labels in zip(torch.split(images, size), torch.split(labels, size), strict=True):
        some_images, truth = some_images.to(step.device), some_labels.to(step.device).long()
        logits = step.logits(normalise(some_images, mean, std, step.plan.memory_format))
        predicted = logits.argmax(1)
        counts[0] += predicted[predicted == truth].bincount(minlength=step.classes)
        counts[1] += predicted.bincount(minlength=step.classes)
        loss += float(F.cross_entropy(logits, truth, reduction="sum"))
        if probabilities is not None:
            probabilities[done : done + len(truth)] = logits.softmax(1)
        done += len(truth)
    return [loss, *counts.flatten().tolist()]


def chance_warning(score: Score, labels: Tensor) -> str | None:
    """Return a warning where a model scored on samples with these `labels`, uint8 [N], is no better than a guess.

    The guess is the most frequent class, whatever the image. None: the model is better.
    """
    guess = float(labels.bincount().max()) / len(labels)
    if score.accuracy > guess + SIGMAS * math.sqrt(guess * (1 - guess) / len(labels)):
        return None
    return (
        f"the model recognizes {score.accuracy:.1%} of the test samples, no better than chance: the most frequent "
        f"class alone is {guess:.1%} of them; train longer, change learning_rate or check the labels"
    )
