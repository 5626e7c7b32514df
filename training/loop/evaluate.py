"""Accuracy and loss of a model on samples it is not trained on."""

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from training.data.batches import normalise
from training.step.train_step import TrainStep

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


def evaluate(
    step: TrainStep, images: Tensor, labels: Tensor, mean: float, std: float, probabilities: Tensor | None = None
) -> Score:
    """Score the step's model on uint8 images [N, C, H, W] and uint8 labels [N], N >= 1.

    What it says of each sample goes to `probabilities`, float32 [N, classes] on the CPU, where they are wanted.
    """
    right, loss = _sums(step, images, labels, mean, std, probabilities)
    return Score(accuracy=right / len(labels), loss=loss / len(labels), samples=len(labels))


def evaluate_together(step: TrainStep, images: Tensor, labels: Tensor, mean: float, std: float) -> Score:
    """Score the leader's model as `evaluate` does; each rank scores a part, and all get the same score."""
    group = step.group
    group.share_buffers(step.model)
    right, loss = group.sum(_sums(step, group.share_of(images), group.share_of(labels), mean, std, None))
    return Score(accuracy=right / len(labels), loss=loss / len(labels), samples=len(labels))


@torch.inference_mode()
def _sums(
    step: TrainStep, images: Tensor, labels: Tensor, mean: float, std: float, probabilities: Tensor | None
) -> tuple[float, float]:
    """Return the number of samples that are recognized and the sum of their losses."""
    step.model.eval()
    right, loss, done = 0, 0.0, 0
    size = step.plan.eval_batch
    if not len(labels):  # more ranks than samples
        return right, loss
    for some_images, some_labels in zip(torch.split(images, size), torch.split(labels, size), strict=True):
        some_images, truth = some_images.to(step.device), some_labels.to(step.device).long()
        logits = step.logits(normalise(some_images, mean, std, step.plan.memory_format))
        right += int((logits.argmax(1) == truth).sum())
        loss += float(F.cross_entropy(logits, truth, reduction="sum"))
        if probabilities is not None:
            probabilities[done : done + len(truth)] = logits.softmax(1)
        done += len(truth)
    return right, loss


def chance_warning(score: Score, labels: Tensor) -> str | None:
    """Say so where a model scored on samples with these `labels`, uint8 [N], is no better than its best guess.

    That is to answer with the most frequent class, whatever the image.
    """
    guess = float(labels.bincount().max()) / len(labels)
    if score.accuracy > guess + SIGMAS * math.sqrt(guess * (1 - guess) / len(labels)):
        return None
    return (
        f"the model recognizes {score.accuracy:.1%} of the test samples, no better than chance: the most frequent "
        f"class alone is {guess:.1%} of them; train longer, change learning_rate or check the labels"
    )
