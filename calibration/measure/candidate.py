"""Candidate: a plan with its own model, trained step by step on real batches."""

import itertools
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from preflight.container.resources import Quota
from preflight.container.work_clock import WorkClock
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from training.data.batches import Batches
from training.data.dataset_store import PreparedDataset
from training.step.profiler import PhaseTimer
from training.step.train_step import TrainStep


class Candidate:
    """A plan in training."""

    def __init__(self, spec: TrainSpec, plan: Plan, store: PreparedDataset) -> None:
        """Begin a training."""
        self.plan = plan
        self.spec = spec
        self.step = TrainStep(spec, plan, store.info.shape, store.info.classes)
        # The generator must not know this object: a cycle would keep the model in memory until it is collected.
        self._source = _forever(Batches(store, spec, plan))
        self.trained = 0
        self.fetch_s = 0.0
        """Seconds spent waiting for batches, in the steps of the last call of `run`."""
        self.period_s: float | None = None
        """Period of the quota that set the pace of those steps; None: no quota did."""
        self.update_s = 0.0
        """Seconds that those steps spent on updating the weights."""

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return the next effective batch, as training would get it."""
        return next(self._source)

    def run(self, steps: int, quota: Quota | None = None, most_s: float | None = None) -> list[float]:
        """Run `steps` steps and return their seconds in the long run under `quota`, fetching included.

        No step but the first begins after `most_s` seconds.
        """
        torch.set_num_threads(self.plan.threads)
        waited_s, timer, clock = 0.0, PhaseTimer(), WorkClock(quota)
        self.step.end_phase = timer
        began = time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            images, labels = self.next_batch()
            waited_s += time.perf_counter() - asked
            self.step.run(images, labels, self.spec.learning_rate)
            clock.lap()
            self.trained += 1
            if most_s is not None and time.perf_counter() - began >= most_s:
                break
        timed, wall_s = clock.timed(), time.perf_counter() - began
        self.fetch_s = sum(timed.seconds) * min(1.0, waited_s / wall_s)
        self.update_s = sum(timed.seconds) * min(1.0, timer.seconds["optimizer"] / wall_s)
        self.period_s = timed.period_s
        return list(timed.seconds)


def _forever(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in itertools.count():
        yield from batches.of(epoch)


def gradient_cosine(reference: Candidate, plan: Plan, store: PreparedDataset, steps: int) -> float:
    """Return the cosine between the gradients of one real batch under `plan` and under the plan of `reference`.

    Both are taken at the weights that `reference` has after at least `steps` steps. More than a training, this takes
    the memory of a second model and its gradients.
    """
    reference.run(max(0, steps - reference.trained))
    images, labels = reference.next_batch()
    other = TrainStep(reference.spec, plan, store.info.shape, store.info.classes)
    other.model.load_state_dict(reference.step.model.state_dict())
    gradients = []
    for step in (other, reference.step):
        step.model.train()
        step.gradients(images, labels)
        gradients.append([p.grad for p in step.model.parameters() if p.grad is not None])
    one, two = gradients
    return float(_dot(one, two) / (_dot(one, one) * _dot(two, two)).sqrt())


def _dot(one: Sequence[Tensor], two: Sequence[Tensor]) -> Tensor:
    """Return the inner product of two vectors that lie in pieces, a float64 scalar."""
    return torch.stack([(a * b).sum(dtype=torch.float64) for a, b in zip(one, two, strict=True)]).sum()
