"""Advice on changes that would alter the result: measured after the last step, and only reported.

Forward and backward passes of one step are timed again at the end of the process, in turns with and without a change.
The weights stay, and so do the user's gradients.
"""

import logging
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ..statistics import Comparison, compare
from .replay import Part, Replay

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

ALIKE: Final = 0.99
"""Least cosine of the gradients of two precisions, as in calibration."""
PAIRS: Final = 7
"""Batches that are fetched in each way."""
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


def advise(parts: Sequence[Part], loader: "DataLoader[object] | None", step_s: float, room: int) -> Iterator[Advice]:
    """Yield advice on how to make steps of `step_s` seconds faster; `room` bytes are free for larger batches."""
    import torch

    replay = Replay(parts)
    with _silence(), torch.random.fork_rng(devices=()), replay.kept_as_it_was():
        measured: dict[str, Callable[[], Advice]] = {
            "bfloat16": lambda: _bfloat16(replay),
            "channels_last": lambda: _channels_last(replay),
            "larger batches": lambda: _larger_batch(replay, loader, room),
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


def _bfloat16(replay: Replay) -> Advice:
    alike = cosine(replay.gradients(), replay.gradients(precision=_autocast))
    note = f"the gradients' cosine is {alike:.3f}"
    if alike < ALIKE:
        return Advice(change="bfloat16", note=f"{note}, less than {ALIKE}")
    found = replay.race(precision=_autocast)
    line = 'with torch.autocast("cpu", torch.bfloat16): around the forward pass and the loss'
    return Advice(change="bfloat16", line=line, ratio=found, note=note)


def _channels_last(replay: Replay) -> Advice:
    import torch

    def is_picture(each: torch.Tensor) -> bool:
        return each.dim() == 4

    has_pictures = any(is_picture(each) for part in replay.parts for each in part.inputs())
    layers = [each for module in replay.modules for each in module.modules()]
    if not has_pictures or not any(isinstance(each, torch.nn.Conv2d) for each in layers):
        return Advice(change="channels_last", note="the model has no convolution of pictures")

    def changed(each: torch.Tensor) -> torch.Tensor:
        if not is_picture(each):
            return each
        return each.detach().contiguous(memory_format=torch.channels_last).requires_grad_(each.requires_grad)

    @contextmanager
    def during() -> Iterator[None]:
        for module in replay.modules:
            module.to(memory_format=torch.channels_last)
        try:
            yield
        finally:
            for module in replay.modules:
                module.to(memory_format=torch.contiguous_format)

    line = "model.to(memory_format=torch.channels_last), and the same for the pictures"
    found = replay.race([part.fed(changed) for part in replay.parts], during=during)
    return Advice(change="channels_last", line=line, ratio=found)


def _larger_batch(replay: Replay, loader: "DataLoader[object] | None", room: int) -> Advice:
    if room <= 0:
        return Advice(change="larger batches", note="the memory is too short")
    sizes = [loader.batch_size] if loader is not None and loader.batch_size else []
    sizes += next((list(each.shape[:2]) for each in replay.parts[0].inputs() if each.dim()), [])
    for count in dict.fromkeys(filter(None, sizes)):
        doubled = [part.doubled(count) for part in replay.parts]
        whole = [each for each in doubled if each is not None]
        if len(whole) == len(doubled):
            once = replay.race(whole)
            line = f"batch_size={2 * count} instead of {count}; choose the learning rate again"
            return Advice(
                change=f"batches of {2 * count} samples", line=line,
                ratio=Comparison(2 * once.ratio, 2 * once.low, 2 * once.high, once.pairs),
                of="the samples a second of forward and backward",
            )  # fmt: skip
    return Advice(change="larger batches", note="the samples of a batch were not found")


def _workers(replay: Replay, loader: "DataLoader[object] | None", step_s: float) -> Advice:
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


def _compiled(replay: Replay) -> Advice:
    import torch

    if not any(shutil.which(name) for name in COMPILERS):
        return Advice(change="torch.compile", note="it needs a C++ compiler, and there is none here")
    from torch._inductor import config  # at its exit a process starts no threads and children any more

    config.compile_threads = 1
    compiled = {id(each): torch.compile(each) for each in replay.modules}
    parts = [replace(part, call=compiled[id(part.module)]) for part in replay.parts]
    began = time.perf_counter()
    replay.gradients(parts)
    took = time.perf_counter() - began
    each = "" if len(compiled) == 1 else ", and the same for the other modules that the script calls"
    return Advice(
        change="torch.compile", line=f"model = torch.compile(model){each}", ratio=replay.race(parts),
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
