"""Keeps checkpoints of a training under way, and takes one up again.

What is kept is all that the rest of the training depends on: weights and buffers, the optimizer's state, the best
weights, torch's random state and the course. Order and augmentation are keyed by (seed, epoch, sample) and have no
state. The training stands still only while tensors are copied; hashing, writing and syncing are done by a thread.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import torch
from pydantic import JsonValue
from safetensors import SafetensorError, safe_open
from torch import Tensor

from training.checkpoints import format as checkpoint
from training.checkpoints.format import Blob, Origin, Unusable
from training.data import dataset_store as store
from training.data.dataset_store import StoreInfo
from training.data.split import split
from training.errors import DatasetError
from training.loop.train_state import Course, diverged
from training.loop.train_step import TrainStep
from training.process.journal import Report
from training.system.digests import Digest, Digests

KEPT: Final = 2
"""Checkpoints left on disk: the second in case the first is damaged."""
SECONDS: Final = (15.0, 60.0)
"""Between two checkpoints by time, at least and at most, where nothing else is asked for."""
COST: Final = 0.01
"""Share of the time that checkpoints may take: those at the ends of epochs are left out beyond it, and those by time,
where nothing else is asked for, made more seldom."""
DISPLACED: Final = 2.0
"""Seconds that the training loses by one second's work of the thread that writes: where each processor has a thread of
the training, all of them wait for the one that had to give way; 1.6 were measured."""
DTYPES: Final = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""Names of number types in safetensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A checkpoint that is on disk."""

    path: Path
    epoch: int
    step: int
    seconds: float
    """For which the training stood still."""
    write_seconds: float
    processor_seconds: float
    """Of the thread that wrote it."""
    bytes: int

    @property
    def cost(self) -> float:
        """Seconds that the training lost by it, about."""
        return self.seconds + DISPLACED * self.processor_seconds


class Keeper:
    """Writes the checkpoints of one training to a directory of its attempt, by time and at the ends of epochs.

    Records `resumed`, `checkpoint` and `warning`. Use as a context: leaving it waits for the last write.
    """

    def __init__(
        self, step: TrainStep, info: StoreInfo, report: Report, *,
        directory: Path | None = None, seconds: float | None = None, facts: dict[str, JsonValue] | None = None,
        verified: Sequence[Digest] = (),
    ) -> None:  # fmt: skip
        """Keep the training of `step` on `info` in the existing `directory`; None: keep nothing.

        A checkpoint is made every `seconds`; None: as often as `SECONDS` and `COST` say. What was `verified` is not
        hashed again, unless it looks different now.
        """
        self._step = step
        self._plan = step.plan  # a later attempt begins with the plan that this one was given
        self._info = info
        self._report = report
        self._directory = directory
        self._least, self._most = SECONDS if seconds is None else (seconds, seconds)
        self._facts = facts or {}
        self._digests = Digests(verified)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        # At once: the prepared data may be deleted any time after they were opened.
        self._origin = self._writer.submit(self._made_from)
        self._pending: Future[Written] | None = None
        self._copies: dict[str, tuple[Tensor, Blob]] = {}
        # A model may have a mask of infinities; what is finite before the first step has to stay so.
        self._never_finite = {name for name, tensor in _changing(step) if not _finite(tensor)}
        self._kept: list[Path] = []
        self._position: int | None = None  # of the newest one, written or being written
        self._last = time.perf_counter()
        self._cost = 0.0  # of the one that was written last
        self._failing = False

    def _made_from(self) -> Origin:
        """Return what the training is made from; runs in the thread, as all its data have to be read."""
        return Origin(
            spec=self._step.spec, plan=self._plan, dataset=self._info.name,
            data_sha256=store.checksum(self._info, self._digests), facts=self._facts,
        )  # fmt: skip

    def resume(self, paths: Sequence[Path]) -> Course:
        """Take up the first of `paths` (JSON files) that can be, and return its course; else that of the beginning.

        Raises:
            InvalidConfig: the spec does not suit the data set.
            DatasetError: it cannot be read any more.
        """
        steps = split(self._step.spec, self._info).steps
        for path in paths:
            try:
                course = self._load(path, steps)
            except Unusable as error:
                self._report.write("warning", {"message": checkpoint.passed_over(path, error)})
                continue
            self._kept, self._position, self._last = [path], course.position, time.perf_counter()
            resumed: dict[str, JsonValue] = {"epoch": course.epoch, "step": course.step, "checkpoint": str(path)}
            self._report.write("resumed", resumed, durable=True)
            return course
        return Course(steps=steps)

    def _load(self, path: Path, steps: int) -> Course:
        course = checkpoint.read(path, self._step.spec, self._origin.result().data_sha256, self._digests).course
        if course.steps != steps:
            raise Unusable(f"its epochs have {course.steps} steps instead of {steps}")
        try:
            with safe_open(checkpoint.tensors_of(path), framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
                restore(self._step, tensors, best=bool(course.history))
        except (OSError, SafetensorError) as error:
            raise Unusable(f"safetensors says {error}") from error
        return course

    def due(self) -> bool:
        """Whether the time for a checkpoint has come; one that is still being written comes first."""
        if self._directory is None:
            return False
        self._collect(wait=False)
        elapsed = time.perf_counter() - self._last
        cheap = self._cost <= COST * elapsed or elapsed >= self._most
        return self._pending is None and elapsed >= self._least and cheap

    def worthwhile(self) -> bool:
        """Whether a checkpoint at the end of an epoch would cost no more than its share."""
        if self._directory is None:
            return False
        self._collect(wait=False)
        return self._pending is None and self._cost <= COST * (time.perf_counter() - self._last)

    def keep(self, course: Course) -> None:
        """Begin a checkpoint, after the one before; none is made where that is at the same position.

        One that cannot be written is a `warning`, and what it should have replaced stays.

        Raises:
            Diverged: what it would keep is not finite any more; those before it stay.
        """
        began = time.perf_counter()
        self._collect(wait=True)
        if self._directory is None or course.position == self._position:
            return
        tensors = self._copied(course)
        stand = replace(course, history=list(course.history))
        self._position, self._last = course.position, time.perf_counter()
        self._pending = self._writer.submit(self._write, self._directory, stand, tensors, self._last - began)

    def keep_now(self, course: Course) -> None:
        """Make a checkpoint and wait until it is on disk."""
        self.keep(course)
        self._collect(wait=True)

    def _copied(self, course: Course) -> dict[str, Blob]:
        """Copy every tensor and return the copies; the memory is that of the last time, as new pages cost more.

        Raises:
            Diverged: one of them is not finite any more.
        """
        for name, tensor in _changing(self._step):
            if name not in self._copies:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype)
                self._copies[name] = copy, _blob(copy)
            if not (_finite(self._copies[name][0].copy_(tensor)) or name in self._never_finite):
                raise diverged(f"{name} holds NaN or an infinity", course.position, self._step.spec)
        best = {f"best/{name}": _blob(tensor) for name, tensor in self._step.best.items()}
        return {name: blob for name, (_, blob) in self._copies.items()} | best

    def _write(self, directory: Path, course: Course, tensors: Mapping[str, Blob], seconds: float) -> Written:
        """Write a checkpoint and remove those that it makes superfluous; runs in the thread."""
        began, processor_began = time.perf_counter(), time.thread_time()
        path, size = checkpoint.write(directory, self._origin.result(), course, tensors)
        self._kept = [*(kept for kept in self._kept if kept != path), path][-KEPT:]
        checkpoint.prune(directory, self._kept)
        return Written(
            path=path, epoch=course.epoch, step=course.step, seconds=seconds,
            write_seconds=time.perf_counter() - began,
            processor_seconds=time.thread_time() - processor_began, bytes=size,
        )  # fmt: skip

    def _collect(self, *, wait: bool) -> None:
        """Record what became of the checkpoint that is being written, if it has come to an end."""
        if self._pending is None or not (wait or self._pending.done()):
            return
        pending, self._pending = self._pending, None
        try:
            written = pending.result()
        except (OSError, DatasetError) as error:
            self._position = None
            why = error.strerror if isinstance(error, OSError) else None
            if not self._failing:  # said once for each time that writing ceases to work
                self._report.write("warning", {"message": (
                    f"no checkpoint can be written to {self._directory} ({why or error}); "
                    "training goes on, and a kill costs what was trained since the last one"
                )})  # fmt: skip
            self._failing = True
            return
        self._failing = False
        self._cost = written.cost
        self._report.write("checkpoint", {
            "epoch": written.epoch, "step": written.step, "seconds": written.seconds,
            "write_seconds": written.write_seconds, "bytes": written.bytes,
        })  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._collect(wait=True)
        self._writer.shutdown()


def _changing(step: TrainStep) -> Iterator[tuple[str, Tensor]]:
    """Yield, with its name, each tensor that a training step may change."""
    for name, value in step.model.state_dict().items():
        yield f"model/{name}", value
    for number, parameter in enumerate(step.parameters):
        for key, value in step.optimizer.state[parameter].items():
            if isinstance(value, Tensor):
                yield f"optimizer/{number}/{key}", value
    yield "random", torch.get_rng_state()
    if step.device.type == "cuda":
        yield "random-cuda", torch.cuda.get_rng_state()


def _finite(tensor: Tensor) -> bool:
    """Whether there is no NaN and no infinity in it, in one pass over its memory."""
    if not (tensor.is_floating_point() and tensor.numel()):
        return True
    return all(bool(torch.isfinite(end)) for end in torch.aminmax(tensor))  # a NaN is both its ends


def _blob(tensor: Tensor) -> Blob:
    """Return a contiguous tensor as what safetensors stores; the memory is shared."""
    data = tensor.reshape(-1).view(torch.uint8).numpy().data
    return Blob(DTYPES[tensor.dtype], tuple(tensor.shape), data, tensor.element_size())


def restore(step: TrainStep, tensors: Mapping[str, Tensor], *, best: bool) -> None:
    """Put the tensors of a checkpoint into `step`, with or without best weights; none of them when it raises.

    Raises:
        Unusable: they are not those of this model.
    """
    model, best_weights = _beneath("model/", tensors), _beneath("best/", tensors)
    wanted = _shapes(step.model.state_dict())
    if _shapes(model) != wanted or _shapes(best_weights) != (wanted if best else {}):
        raise Unusable(f"its weights are not those of model {step.spec.model!r}")
    states = _states(step, _beneath("optimizer/", tensors))
    try:
        torch.set_rng_state(tensors["random"])
        if step.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random-cuda"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise Unusable("its random state is none of this version of torch") from error
    step.model.load_state_dict(model)
    step.optimizer.state.clear()
    for parameter, state in zip(step.parameters, states, strict=True):
        if state:
            step.optimizer.state[parameter] = state
    step.best = {name: value.clone() for name, value in best_weights.items()}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


def _beneath(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _states(step: TrainStep, saved: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the optimizer's state of each parameter, in that parameter's memory layout."""
    states: list[dict[str, Tensor]] = [{} for _ in step.parameters]
    for name, value in saved.items():
        number, _, key = name.partition("/")
        if not number.isdecimal() or int(number) >= len(states):
            raise Unusable(f"the optimizer has no parameter {number}")
        parameter = step.parameters[int(number)]
        if value.shape not in (parameter.shape, torch.Size([])):
            raise Unusable(f"the optimizer's {key} of parameter {number} is of another shape than the parameter")
        same = value.shape == parameter.shape
        home = torch.empty_like(parameter, dtype=value.dtype) if same else torch.empty_like(value)
        states[int(number)][key] = home.detach().copy_(value)
    return states
