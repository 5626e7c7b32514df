"""Tuner: the tuning of `preflight run` for a program that calls it, with options that need the program's own loop.

from preflight import Tuner

tuner = Tuner(micro_batch="auto", precision="auto")
for batch in loader:
    loss = tuner.step(model, optimizer, batch, loss_of)
print(tuner.report())
"""

import atexit
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeVar

from preflight.container.oom_kills import oom_kills
from preflight.container.resources import MemoryUse, Throttling, binding_quota
from preflight.launch.block import Ended, block
from preflight.launch.findings import read_findings
from preflight.tuner.advice import ALIKE, cosine
from preflight.tuner.journal import Options
from preflight.tuner.micro_batches import MicroBatchTuner
from preflight.tuner.training import COMPARED_STEP

if TYPE_CHECKING:
    import torch

    from preflight.tuner.hook import TrainingHook

Batch = TypeVar("Batch")
PRIVATE: Final = "_preflight_run"
"""Name of our package in a process that `preflight run` has started: it is tuned already."""


class Tuner:
    """Tunes the training of this process from now on, until another one is made."""

    _joined: "ClassVar[TrainingHook | None]" = None

    def __init__(
        self, *, precision: Literal["own", "auto"] = "own", micro_batch: Literal["own", "auto"] = "own",
        exact: bool = False, steps: int | None = None, advise: bool = False,
    ) -> None:  # fmt: skip
        """Join the optimizers of this process; torch is imported here.

        `precision="auto"` takes bfloat16 by autocast in `step` where its gradients agree; `micro_batch="auto"` halves
        the samples of a forward pass while memory is short, for models whose layers treat each sample by itself. With
        `exact` threads and malloc stay; `steps` are those of the whole training, to predict its end. With
        `advise` the report is preceded by a minute or two of measurements, which it then has.
        """
        self._precision = precision
        self._splits = micro_batch == "auto"
        self._most: int | None = None
        """Most samples of a forward pass; None: all of a batch."""
        self._micro: MicroBatchTuner | None = None
        self._number = 0
        self._autocast = False
        self._memory = MemoryUse()
        self._began, self._kills, self._quota = time.monotonic(), oom_kills(), binding_quota()
        self._throttling = Throttling.read(self._quota)
        self._folder = Path(tempfile.mkdtemp(prefix="preflight-tuner-"))
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        Options(exact=exact, steps=steps, advise=advise).write(self._folder / "options.json")
        self._hook: TrainingHook | None = None
        if PRIVATE not in sys.modules:
            from preflight.tuner.hook import install

            if Tuner._joined is not None:
                Tuner._joined.leave()
            Tuner._joined = self._hook = install(self._folder, {})

    def step(
        self, model: "torch.nn.Module", optimizer: "torch.optim.Optimizer", batch: Batch,
        loss_of: Callable[["torch.nn.Module", Batch], "torch.Tensor"],
    ) -> float:  # fmt: skip
        """Make one optimizer step on a batch; return its mean loss.

        `batch` is a tensor, or a tuple, list or dict of tensors whose first dimension is that of the samples;
        `loss_of` returns the mean loss of one.
        """
        self._number += 1
        if self._precision == "auto" and self._number == COMPARED_STEP:
            self._autocast = self._agrees(model, optimizer, batch, loss_of)
        if self._splits:
            self._watch_memory(model, batch)
        optimizer.zero_grad()
        loss = self._backward(model, batch, loss_of, autocast=self._autocast)
        optimizer.step()
        return loss

    def report(self) -> str:
        """Return the report, as the block at the end of `preflight run`; empty under that command."""
        if self._hook is None:
            return ""
        self._hook.finish()
        ended = Ended(
            status=0, seconds=time.monotonic() - self._began, kills=max(0, oom_kills() - self._kills),
            memory_limit=self._memory.limit, throttled=Throttling.read(self._quota).share_since(self._throttling),
            quota=None if self._quota is None else float(self._quota.processors),
        )  # fmt: skip
        findings = read_findings(self._folder)
        lines = [block(findings, ended, is_over=True)]
        if self._autocast:
            lines.append("preflight: bfloat16 by autocast, as its gradients agree")
        if self._most is not None:
            lines.append(f"preflight: each batch in parts of {self._most} samples, as memory is short")
        return "\n".join(lines)

    def _backward(
        self, model: "torch.nn.Module", batch: Batch,
        loss_of: Callable[["torch.nn.Module", Batch], "torch.Tensor"], *, autocast: bool,
    ) -> float:  # fmt: skip
        total = 0.0
        for part, share in _parts(batch, self._most):
            with _precision(autocast=autocast):
                loss = loss_of(model, part) * share
            loss.backward()
            total += float(loss.detach())
        return total

    def _agrees(
        self, model: "torch.nn.Module", optimizer: "torch.optim.Optimizer", batch: Batch,
        loss_of: Callable[["torch.nn.Module", Batch], "torch.Tensor"],
    ) -> bool:  # fmt: skip
        """Whether the gradients of bfloat16 point where those of float32 do; both are those of a copy of the model."""
        import copy

        import torch

        found = []
        for autocast in (False, True):
            twin = copy.deepcopy(model)
            with torch.random.fork_rng(devices=()):
                twin.zero_grad()
                self._backward(twin, batch, loss_of, autocast=autocast)
            found.append([each.grad for each in twin.parameters()])
        optimizer.zero_grad()
        return cosine(*found) >= ALIKE

    def _watch_memory(self, model: "torch.nn.Module", batch: Batch) -> None:
        if self._micro is None:
            from torch.nn.modules.batchnorm import _BatchNorm

            count = _samples(batch)
            has_statistics = any(isinstance(each, _BatchNorm) for each in model.modules())
            self._micro = MicroBatchTuner(count, count, batch_statistics=has_statistics)
        used = self._memory.bytes()
        change = None if used is None else self._micro.observe(1, used / self._memory.limit)
        if change is not None:
            self._most = change.after


def _precision(*, autocast: bool) -> AbstractContextManager[object]:
    import torch

    return torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()


def _tensors(batch: object) -> Sequence["torch.Tensor"]:
    import torch

    if isinstance(batch, torch.Tensor):
        return [batch]
    values = list(batch.values()) if isinstance(batch, dict) else list(batch) if isinstance(batch, tuple | list) else []
    return [each for each in values if isinstance(each, torch.Tensor)]


def _samples(batch: object) -> int:
    return min((len(each) for each in _tensors(batch) if each.dim()), default=1)


def _parts(batch: Batch, most: int | None) -> Iterator[tuple[Batch, float]]:
    """Yield a batch in parts of at most `most` samples, each with its share of the batch."""
    count = _samples(batch)
    if most is None or most >= count:
        yield batch, 1.0
        return
    edges = [*range(0, count, most), count]
    for start, end in pairwise(edges):
        yield _slice(batch, start, end), (end - start) / count


def _slice(batch: Batch, start: int, end: int) -> Batch:
    import torch

    def cut(each: object) -> object:
        return each[start:end] if isinstance(each, torch.Tensor) and each.dim() else each

    if isinstance(batch, torch.Tensor):
        rows: Batch = itemgetter(slice(start, end))(batch)
        return rows
    if isinstance(batch, dict):
        return type(batch)({name: cut(each) for name, each in batch.items()})
    if isinstance(batch, tuple | list):
        return type(batch)(map(cut, batch))
    return batch
