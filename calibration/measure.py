"""Measures real training steps of one plan against another, interleaved, in this process."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from training.batches import Batches, split
from training.evaluate import evaluate
from training.plan import Plan
from training.spec import TrainSpec
from training.step import TrainStep
from training.store import Store

WARM_UP: Final = 3
"""Steps thrown away: the first ones build primitives and fill caches."""
EVAL_SAMPLES: Final = 256
"""Samples that the cost of a validation is measured on; a large network takes a second for them."""
BLOCKS: Final = 4
"""Blocks that the samples of one plan are measured in, so that two plans can take turns."""
DROP_BELOW: Final = 0.85
"""A challenger this much slower than the best after two pairs is not measured further."""
GAIN: Final = 1.03
"""A challenger must be this much faster to win: less is within the noise of a shared machine."""
GATE_STEPS: Final = 8
"""Steps before gradients are compared: at fresh weights their cosine is the luck of the seed (bench/parity.py)."""
COSINE: Final = 0.99
"""Least cosine between the gradients of a reduced precision and those of float32."""


class Contender:
    """A plan with a model of its own, trained step by step on real batches."""

    def __init__(self, spec: TrainSpec, plan: Plan, store: Store) -> None:
        self.plan = plan
        self.spec = spec
        self.store = store
        self._parts = split(spec, store.info)
        self._step = TrainStep(spec, plan, store.info.shape, store.info.classes)
        self._batches = Batches(store, spec, plan)
        self._source = self._forever()
        self.seconds: list[float] = []
        self._warm: list[float] = []
        self._trained = 0
        self._eval_seconds_per_sample: float | None = None

    def _forever(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch = 0
        while True:
            yield from self._batches.of(epoch)
            epoch += 1

    def warm_up(self, seconds: float) -> None:
        """Run the steps that do not count: `WARM_UP` of them, or as many as are begun within `seconds`."""
        began = time.perf_counter()
        for _ in range(WARM_UP):
            self._warm = self._run(1)
            if time.perf_counter() - began >= seconds:
                return

    def trained(self, steps: int) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
        """Return the weights after at least `steps` steps, and the next batch."""
        self._run(max(0, steps - self._trained))
        return self._step.model.state_dict(), next(self._source)

    def measure(self, steps: int) -> list[float]:
        """Run `steps` steps, fetch included, keep and return their seconds."""
        seconds = self._run(steps)
        self.seconds += seconds
        return seconds

    def _run(self, steps: int) -> list[float]:
        torch.set_num_threads(self.plan.threads)
        seconds = []
        for _ in range(steps):
            began = time.perf_counter()
            images, labels = next(self._source)
            self._step.run(images, labels, self.spec.learning_rate)
            seconds.append(time.perf_counter() - began)
        self._trained += steps
        return seconds

    @property
    def step_s(self) -> float:
        """Median seconds of a step; before it was measured, those of the last step of the warm-up."""
        return statistics.median(self.seconds or self._warm)

    def predicted_epoch_s(self) -> float:
        """Return the predicted wall seconds of an epoch: its steps and its validation."""
        return self._parts.steps * self.step_s + self._parts.validation * self._validation_s()

    def _validation_s(self) -> float:
        """Return measured seconds per validation sample: the second of two passes, the first builds primitives."""
        if self._eval_seconds_per_sample is None:
            torch.set_num_threads(self.plan.threads)
            info, count = self.store.info, min(self.plan.eval_batch, EVAL_SAMPLES, self.store.info.train_count)
            images, labels = self.store.train_images[-count:], self.store.train_labels[-count:]
            for _ in range(2):
                began = time.perf_counter()
                evaluate(self._step, images, labels, info.mean, info.std)
                self._eval_seconds_per_sample = (time.perf_counter() - began) / count
        return self._eval_seconds_per_sample or 0.0


@dataclass(frozen=True, slots=True)
class Race:
    """What a challenger did against the best plan so far."""

    ratio: float
    """Median over the pairs of the best's seconds over the challenger's: above 1 is faster."""
    dropped: bool
    """Whether it was given up early."""

    @property
    def won(self) -> bool:
        """Whether the challenger is faster by more than noise."""
        return not self.dropped and self.ratio >= GAIN


def race(best: Contender, challenger: Contender, samples: int) -> Race:
    """Measure both, warmed up, in turns (A B, B A, ...), `samples` steps each, and compare pair by pair."""
    ratios: list[float] = []
    for block in range(BLOCKS):
        steps = _block_size(samples, block)
        if not steps:
            continue
        if block % 2:
            mine, theirs = challenger.measure(steps), best.measure(steps)
        else:
            theirs, mine = best.measure(steps), challenger.measure(steps)
        ratios.append(statistics.median(theirs) / statistics.median(mine))
        if len(ratios) >= 2 and max(ratios) < DROP_BELOW:
            return Race(statistics.median(ratios), dropped=True)
    return Race(statistics.median(ratios), dropped=False)


def _block_size(samples: int, block: int) -> int:
    return samples * (block + 1) // BLOCKS - samples * block // BLOCKS


def gradients_agree(reference: Contender, plan: Plan) -> bool:
    """Whether the gradients under `plan` point where those of `reference` do, after the steps of the gate."""
    return gradient_cosine(reference, plan, GATE_STEPS) > COSINE


def gradient_cosine(reference: Contender, plan: Plan, steps: int) -> float:
    """Return the cosine between the gradients of one real batch under `plan` and under the plan of `reference`.

    Both are taken at the weights that `reference` has after at least `steps` steps.
    """
    weights, (images, labels) = reference.trained(steps)
    flat = []
    for some_plan in (plan, reference.plan):
        step = TrainStep(reference.spec, some_plan, reference.store.info.shape, reference.store.info.classes)
        step.model.load_state_dict(weights)
        step.model.train()
        step.gradients(images, labels)
        flat.append(torch.cat([p.grad.flatten() for p in step.model.parameters() if p.grad is not None]))
    return float(torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0))
