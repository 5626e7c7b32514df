"""Gradients between ranks: the communication hook of DistributedDataParallel, and the figures of a step with them."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket, Work
from torch.futures import Future

from preflight.contract.plan import Plan
from training.group import Wire

AWAKE_SECONDS: Final = 0.02
"""Seconds for which a rank polls for a message before it sleeps.

On a virtual machine an idle processor takes longer to wake up than the gradients of a small network to travel.
"""
PAIR: Final = 2


@dataclass(slots=True, kw_only=True)
class GradientExchange:
    """Averages gradients over the ranks, bucket by bucket, and adds up the figures of the step."""

    rank: int
    ranks: int
    wire: Wire
    polls: bool
    """Whether to wait awake at first, on processors that nobody else needs meanwhile."""
    figures: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64), init=False)
    """Figures of a step, to add up in place during its backward pass, float64 [N]."""
    _works: list[Work | None] = field(default_factory=list, init=False)
    _arrivals: list[tuple[Future[Tensor], Callable[[], Tensor]]] = field(default_factory=list, init=False)

    def exchange(self, _state: None, bucket: GradBucket) -> Future[Tensor]:
        """Send a bucket, and await all with the last one; the hook, whose future has the mean over the ranks."""
        averaged: Future[Tensor] = Future()
        self._arrivals.append((averaged, self._send(bucket.buffer())))
        if bucket.index() == 0:
            self._works.append(dist.all_reduce(self.figures, async_op=True))
        if bucket.is_last():
            self._await_all()
        return averaged

    def _send(self, gradients: Tensor) -> Callable[[], Tensor]:
        """Send the gradients of a bucket, and return a function for their mean once all have arrived.

        Two ranks send each other theirs: one message each way, where an all-reduce takes two, one after the other.
        """
        own = gradients.bfloat16() if self.wire == "bfloat16" else gradients
        if self.ranks != PAIR:
            self._works.append(dist.all_reduce(own, async_op=True))
            return lambda: gradients.copy_(own).div_(self.ranks)
        other = torch.empty_like(own)
        for rank in range(PAIR):
            self._works.append(dist.broadcast(own if rank == self.rank else other, rank, async_op=True))
        return lambda: gradients.copy_(own).add_(other).div_(PAIR)

    def _await_all(self) -> None:
        for work in self._works:
            await_message(work, polls=self.polls)
        for averaged, mean in self._arrivals:
            averaged.set_result(mean())
        self._works.clear()
        self._arrivals.clear()


def await_message(work: Work | None, *, polls: bool) -> None:
    """Wait for a message of this rank's; raises RuntimeError where another rank is lost."""
    if work is None:  # in a group without this rank
        return
    asleep_from = time.monotonic() + AWAKE_SECONDS
    while polls and not work.is_completed() and time.monotonic() < asleep_from:
        os.sched_yield()
    work.wait()


def may_poll(plan: Plan, quota: float | None) -> bool:
    """Whether a rank may poll in a container with this quota: where each of its threads was granted a processor.

    With a smaller quota, polling takes time that the training needs; without one, time that others need.
    """
    return quota is not None and quota >= plan.threads
