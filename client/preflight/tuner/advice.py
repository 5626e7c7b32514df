"""Advice on changes that would alter the result: measured after the last step, and only reported.

One step's inputs are kept, and the gradients of its outputs. Forward and backward passes with them are timed at the
end of the process, in turns with and without a change. The weights stay, and so do the user's gradients.
"""

import logging
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

from ..statistics import Comparison, compare

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

ALIKE: Final = 0.99
"""Least cosine of the gradients of two precisions, as in calibration."""
COMPARED_STEP: Final = 8
"""Step at which gradients are compared: at fresh weights the cosine is the seed's luck (docs/decisions.md)."""
MOST_PARTS: Final = 0.9
"""Share of the optimizer's parameters that a module must have to stand for the model."""
PAIRS: Final = 7
PAIRS_SECONDS: Final = 6.0
"""Seconds after which no further pair is begun."""
COMPILERS: Final = ("g++", "clang++", "c++")
WAITING: Final = 0.1
"""Share of a step that fetching a batch takes, from which on loader workers are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change that was measured, or why it was not."""

    change: str
    line: str = ""
    """Line of the script to change; empty where there is no gain."""
    ratio: Comparison | None = None
    """Speed with the change."""
    of: str = "forward and backward"
    """The part whose speed `ratio` compares."""
    note: str = ""


@dataclass(slots=True)
class Sample:
    """One forward pass of a training, and the gradients of its outputs."""

    module: "torch.nn.Module"
    args: tuple[object, ...]
    kwargs: dict[str, object]
    cotangents: "dict[int, torch.Tensor]" = field(default_factory=dict)
    """Gradients by the number of the output tensor; a scalar that has none is a loss, whose gradient is 1."""


class Capture:
    """Keeps the inputs of one forward pass of the module that has the optimizer's parameters."""

    def __init__(self, parameters: "Sequence[torch.Tensor]") -> None:
        """Look for a module that has most of `parameters`."""
        self._sizes = {id(each): each.numel() for each in parameters}
        self._handle: torch.utils.hooks.RemovableHandle | None = None
        self._found: tuple[int, torch.nn.Module] | None = None
        self.sample: Sample | None = None

    def look(self) -> None:
        """Look for the module in the forward passes until `keep`."""
        from torch.nn.modules.module import register_module_forward_hook

        self._handle = register_module_forward_hook(self._find)

    def keep(self) -> bool:
        """Keep the next forward pass of the module that was found, with its inputs copied; return if there is one."""
        self.disarm()
        if self._found is None:
            return False
        self._handle = self._found[1].register_forward_hook(self._take, with_kwargs=True)
        return True

    def disarm(self) -> None:
        """Remove the hook, if one is set."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _find(self, module: "torch.nn.Module", args: object, output: object) -> None:  # noqa: ARG002 - torch's
        mine = sum(self._sizes.get(id(each), 0) for each in module.parameters())
        # Outer modules end later.
        least = MOST_PARTS * sum(self._sizes.values()) if self._found is None else self._found[0]
        if module.training and mine >= least:
            self._found = mine, module

    def _take(
        self, module: "torch.nn.Module", args: tuple[object, ...], kwargs: dict[str, object], output: object
    ) -> None:
        import torch

        if not torch.is_grad_enabled() or not module.training:
            return
        self.disarm()
        kept = Sample(module, tuple(map(_copied, args)), {name: _copied(each) for name, each in kwargs.items()})
        for number, tensor in enumerate(_outputs(output)):
            if tensor.dim():
                tensor.register_hook(_keeping(kept, number))
        self.sample = kept


def advise(sample: Sample, loader: "DataLoader[object] | None", step_s: float, room: int) -> Iterator[Advice]:
    """Yield advice on how to make steps of `step_s` seconds faster; `room` bytes are free for larger batches."""
    import torch

    replay = _Replay(sample)
    with _silence(), replay.kept_as_it_was(), torch.random.fork_rng(devices=()):
        measured: dict[str, Callable[[], Advice]] = {
            "bfloat16": lambda: _bfloat16(replay),
            "channels_last": lambda: _channels_last(replay),
            "larger batches": lambda: _larger_batch(replay, room),
            "DataLoader workers": lambda: _workers(replay, loader, step_s),
            "torch.compile": lambda: _compiled(replay),
        }
        for change, measure in measured.items():
            try:
                yield measure()
            except Exception as error:
                yield Advice(change=change, note=f"{type(error).__name__}: {error}")


def cosine(first: "Sequence[torch.Tensor | None]", second: "Sequence[torch.Tensor | None]") -> float:
    """Return the cosine of two gradients."""
    import torch

    one, other = (
        torch.cat([each.flatten().float() for each in side if each is not None]) for side in (first, second)
    )  # fmt: skip
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


class _Replay:
    """Runs forward and backward of a sample again."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.module: Callable[..., object] = sample.module
        self.args, self.kwargs, self.cotangents = sample.args, sample.kwargs, sample.cotangents
        self.parameters = [each for each in sample.module.parameters() if each.requires_grad]

    @contextmanager
    def kept_as_it_was(self) -> Iterator[None]:
        """Restore running statistics and the modes of the layers afterwards."""
        import torch

        module = self.sample.module
        buffers = [(each, each.detach().clone()) for each in module.buffers()]
        modes = [(each, each.training) for each in module.modules()]
        module.train()
        try:
            yield
        finally:
            for each, training in modes:
                each.training = training
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)

    def gradients(self, precision: "AbstractContextManager[object] | None" = None) -> "Sequence[torch.Tensor | None]":
        """Return the gradients of all parameters; those of the user stay."""
        import torch

        with precision or nullcontext():
            outputs = _outputs(self.module(*self.args, **self.kwargs))
        losses = [each for each in outputs if not each.dim()]
        if losses:
            return torch.autograd.grad(losses, self.parameters, allow_unused=True)
        used = [(each, self.cotangents[number]) for number, each in enumerate(outputs) if number in self.cotangents]
        return torch.autograd.grad(
            [each for each, _ in used], self.parameters, [given.to(each.dtype) for each, given in used],
            allow_unused=True,
        )  # fmt: skip

    def race(self, change: Callable[[], AbstractContextManager[object]], precision: bool = False) -> Comparison:
        """Return how much faster forward and backward are under a change; both take turns."""
        pairs: list[tuple[list[float], list[float]]] = []
        began = time.perf_counter()
        with change():
            self._timed(precision=precision)
        self._timed()
        while len(pairs) < 3 or (len(pairs) < PAIRS and time.perf_counter() - began < PAIRS_SECONDS):
            own: list[float] = []
            changed: list[float] = []
            for is_changed in (False, True) if len(pairs) % 2 else (True, False):
                with change() if is_changed else nullcontext():
                    (changed if is_changed else own).append(self._timed(precision=is_changed and precision))
            pairs.append((own, changed))
        return compare(pairs)

    def _timed(self, *, precision: bool = False) -> float:
        began = time.perf_counter()
        self.gradients(_autocast() if precision else None)
        return time.perf_counter() - began


def _bfloat16(replay: _Replay) -> Advice:
    alike = cosine(replay.gradients(), replay.gradients(_autocast()))
    note = f"the gradients' cosine is {alike:.3f}"
    if alike < ALIKE:
        return Advice(change="bfloat16", note=f"{note}, less than {ALIKE}")
    found = replay.race(nullcontext, precision=True)
    line = 'with torch.autocast("cpu", torch.bfloat16): around the forward pass and the loss'
    return Advice(change="bfloat16", line=line, ratio=found, note=note)


def _channels_last(replay: _Replay) -> Advice:
    import torch

    is_picture = [isinstance(each, torch.Tensor) and each.dim() == 4 for each in replay.args]
    if not any(is_picture) or not any(isinstance(each, torch.nn.Conv2d) for each in replay.sample.module.modules()):
        return Advice(change="channels_last", note="the model has no convolution of pictures")

    @contextmanager
    def changed() -> Iterator[None]:
        module, args = replay.sample.module, replay.args
        module.to(memory_format=torch.channels_last)
        replay.args = tuple(
            each.contiguous(memory_format=torch.channels_last) if isinstance(each, torch.Tensor) and each.dim() == 4
            else each for each in args
        )  # fmt: skip
        try:
            yield
        finally:
            module.to(memory_format=torch.contiguous_format)
            replay.args = args

    line = "model.to(memory_format=torch.channels_last), and the same for the pictures"
    return Advice(change="channels_last", line=line, ratio=replay.race(changed))


def _larger_batch(replay: _Replay, room: int) -> Advice:
    import torch

    found = [
        each for each in chain(replay.args, replay.kwargs.values()) if isinstance(each, torch.Tensor) and each.dim()
    ]
    count = len(found[0]) if found else 0
    change = f"batches of {2 * count} samples"
    if not count or any(len(each) != count for each in [*found, *replay.cotangents.values()]):
        return Advice(change="larger batches", note="the samples of a batch were not found")
    if room <= 0:
        return Advice(change=change, note="the memory is too short")

    def doubled(each: object) -> object:
        return torch.cat((each, each)) if isinstance(each, torch.Tensor) and each.dim() else each

    @contextmanager
    def changed() -> Iterator[None]:
        before = replay.args, replay.kwargs, replay.cotangents
        replay.args = tuple(map(doubled, replay.args))
        replay.kwargs = {name: doubled(each) for name, each in replay.kwargs.items()}
        replay.cotangents = {number: torch.cat((each, each)) / 2 for number, each in replay.cotangents.items()}
        try:
            yield
        finally:
            replay.args, replay.kwargs, replay.cotangents = before

    once = replay.race(changed)
    ratio = Comparison(2 * once.ratio, 2 * once.low, 2 * once.high, once.pairs)
    line = f"batch_size={2 * count} instead of {count}; choose the learning rate again"
    return Advice(change=change, line=line, ratio=ratio, of="the samples a second of forward and backward")


def _workers(replay: _Replay, loader: "DataLoader[object] | None", step_s: float) -> Advice:
    """Compare fetching in the training's own process with a worker, for a data set whose samples have numbers."""
    from torch.utils.data import DataLoader

    if loader is None:
        return Advice(change="DataLoader workers", note="there is no DataLoader")
    size, data = loader.batch_size, loader.dataset
    if loader.num_workers or not size or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        return Advice(change="DataLoader workers", note="the loader has some, or its data set has no numbered samples")
    own = iter(DataLoader(data, size, collate_fn=loader.collate_fn))
    began = time.perf_counter()
    fetched = sum(1 for _, _ in zip(range(3), own, strict=False))
    share = (time.perf_counter() - began) / max(1, fetched) / step_s
    said = f"fetching a batch takes {share:.0%} of a step"
    if share < WAITING or fetched < 3:
        return Advice(change="DataLoader workers", note=said)
    pairs: list[tuple[list[float], list[float]]] = []
    beside = iter(DataLoader(data, size, collate_fn=loader.collate_fn, num_workers=1))
    next(beside)
    for _ in range(PAIRS):
        seconds = []
        for source in (own, beside):
            began = time.perf_counter()
            if next(source, None) is None:
                break
            replay.gradients()
            seconds.append([time.perf_counter() - began])
        if len(seconds) < 2:
            break
        pairs.append((seconds[0], seconds[1]))
    if len(pairs) < 3:
        return Advice(change="DataLoader workers", note=f"{said}, but there are too few batches to measure them")
    line = f"DataLoader(..., num_workers=1, persistent_workers=True); {said}"
    return Advice(change="1 DataLoader worker", line=line, ratio=compare(pairs), of="fetching, forward and backward")


def _compiled(replay: _Replay) -> Advice:
    import torch

    if not any(shutil.which(name) for name in COMPILERS):
        return Advice(change="torch.compile", note="it needs a C++ compiler, and there is none here")
    from torch._inductor import config  # at its exit a process starts no threads and children any more

    config.compile_threads = 1
    module = replay.sample.module
    compiled = torch.compile(module)

    @contextmanager
    def changed() -> Iterator[None]:
        replay.module = compiled
        try:
            yield
        finally:
            replay.module = module

    began = time.perf_counter()
    with changed():
        replay.gradients()
    took = time.perf_counter() - began
    return Advice(
        change="torch.compile", line="model = torch.compile(model)", ratio=replay.race(changed),
        note=f"the first step took {took:.0f} s",
    )  # fmt: skip


@contextmanager
def _silence() -> Iterator[None]:
    """Print nothing: the script's output has ended."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _autocast() -> AbstractContextManager[object]:
    import torch

    return torch.autocast("cpu", torch.bfloat16)


def _copied(each: object) -> object:
    import torch

    return each.detach().clone() if isinstance(each, torch.Tensor) else each


def _keeping(sample: Sample, number: int) -> "Callable[[torch.Tensor], None]":
    def keep(gradient: "torch.Tensor") -> None:
        sample.cotangents[number] = gradient.detach().clone()

    return keep


def _outputs(output: object) -> "list[torch.Tensor]":
    """Return the tensors of an output that have a gradient."""
    import torch

    if isinstance(output, torch.Tensor):
        return [output] if output.requires_grad else []
    if isinstance(output, dict):
        output = list(output.values())
    return [each for part in output for each in _outputs(part)] if isinstance(output, list | tuple) else []
