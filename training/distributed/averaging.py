"""Ranks that step by themselves and average their weights every few steps (local SGD; Stich 2018), where a job says so.

Not torch's `PeriodicModelAverager`: it puts views of one flat tensor in place of the parameters, which loses the layout
channels_last and what the optimizer has of it, and it counts its steps from the start of the process.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from preflight.contract.spec import TrainSpec
from training.checkpoints.tensors import changing_tensors
from training.distributed.measuring import MeasuredRanks, time_steps
from training.group import ALONE
from training.seat import Wire
from training.step.train_step import TrainStep

AVERAGINGS: Final = 5
"""That are timed to measure the group."""


@dataclass(slots=True, kw_only=True)
class AveragingRanks(MeasuredRanks):
    """Ranks each of which steps on its share alone, until all have the mean of their weights; see `Group`."""

    _noted: list[tuple[Tensor, Tensor]] = field(default_factory=list, init=False)
    """Loss and correct samples of each step since then, of this rank's share."""

    def divisor(self, samples: int) -> float:
        """Return their number: the step has the mean over this rank's share."""
        return ALONE.divisor(samples)

    def wrap(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return the model's own forward pass."""
        return ALONE.wrap(model)

    def accumulate(self, *, last: bool) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return ALONE.accumulate(last=last)

    def total(self, loss: Tensor, correct: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
        """Return a function that returns both; `average` makes the loss that of the whole batch, in place."""
        self._noted.append((loss, correct))
        return ALONE.total(loss, correct)

    def share_work(
        self, function: Callable[[Tensor], Tensor], inputs: Iterable[Tensor], costs: Sequence[float]
    ) -> Iterator[Tensor]:
        """Yield what `function` makes of each: every rank has momentum of its own."""
        return ALONE.share_work(function, inputs, costs)

    def agrees(self, position: int, *, last: bool) -> bool:
        """Whether weights are averaged after `position` steps, the `last` one of an epoch or not."""
        return last or self.size == 1 or position % self.average_every == 0

    @torch.no_grad()
    def average(self, step: TrainStep) -> int:
        """Average weights and running statistics, where the job is deterministic the optimizer's state, too.

        Losses since the last time become those of whole batches. Returns the samples that other ranks recognized.
        """
        noted, self._noted = self._noted, []
        if self.size == 1:
            return 0
        tensors = [*self._averaged(step)]
        share = len(self.share_of(torch.empty(self.batch_size))) / self.batch_size
        losses = torch.stack([loss for loss, _ in noted]) * share if noted else torch.empty(0)
        own = sum(int(correct) for _, correct in noted)
        flat = torch.cat([*(tensor.reshape(-1) for tensor in tensors), losses, torch.tensor([float(own)])])
        dist.all_reduce(flat)
        *sums, losses, correct = flat.split([*(tensor.numel() for tensor in tensors), len(noted), 1])
        for tensor, total in zip(tensors, sums, strict=True):
            tensor.copy_(total.div_(self.size).view_as(tensor))
        for (loss, _), whole in zip(noted, losses, strict=True):
            loss.copy_(whole)
        step.end_phase("optimizer")
        return int(correct) - own

    def _averaged(self, step: TrainStep) -> Iterator[Tensor]:
        """Yield what is averaged; without the optimizer's state, a checkpoint has that of the leader.

        In the order of names, whatever that of a restored state: where a tensor lies decides in which order gloo adds.
        """
        for name, tensor in sorted(changing_tensors(step), key=itemgetter(0)):
            if tensor.is_floating_point() and (self.deterministic or name.startswith("model/")):
                yield tensor

    def _wires(self, _spec: TrainSpec) -> tuple[Wire, ...]:
        """Return the precision of weights."""
        return ("float32",)

    def _seconds_together(self, steps: Iterator[TrainStep], count: int) -> float:
        """Return the seconds of a step of the slowest rank, with its part of an averaging."""
        step_s = max(self.gather(time_steps(steps, count, 0.0)))
        step = next(steps)
        self.average(step)

        def averagings() -> Iterator[TrainStep]:
            while True:
                self.average(step)
                yield step

        return self.gather(step_s + time_steps(averagings(), AVERAGINGS, 0.0) / self.average_every)[0]
