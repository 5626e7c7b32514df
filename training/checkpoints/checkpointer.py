"""Checkpointer: saves the checkpoints of a running training, and resumes from one.

A checkpoint holds weights and buffers, the optimizer's state, the best weights, torch's random state and the scalar
training state. Training stops only while tensors are copied; a thread hashes, writes and syncs them. Where memory has
no room for copies, training stops until that is done.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import torch
from pydantic import JsonValue
from safetensors import SafetensorError, safe_open
from torch import Tensor

from preflight.container.resources import SHORT, MemoryUse
from preflight.errors import DatasetError
from preflight.files.journal import RecordWriter
from training.checkpoints import format
from training.checkpoints.files import prune, tensors_of
from training.checkpoints.format import InvalidCheckpoint, Origin
from training.checkpoints.resume import skip_message
from training.checkpoints.schedule import CheckpointSchedule
from training.checkpoints.tensors import LiveTensors, changing_tensors, is_finite, restore, tensor_view
from training.data import dataset_store
from training.data.dataset_info import DatasetInfo
from training.data.split import split
from training.step.train_state import TrainState, divergence_error
from training.step.train_step import TrainStep
from training.system.digests import Digest, Digests
from training.system.safetensors_file import TensorView

KEPT: Final = 2
"""Checkpoints kept on disk: the second in case the first is damaged."""
DISPLACED: Final = 2.0
"""Training seconds lost per CPU second of the writer thread; 1.6 were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint that is on disk."""

    path: Path
    epoch: int
    step: int
    seconds: float
    """Seconds that training was stopped."""
    write_seconds: float
    processor_seconds: float
    """CPU time of the writer thread."""
    bytes: int

    @property
    def cost(self) -> float:
        """Training seconds lost, estimated."""
        return self.seconds + DISPLACED * self.processor_seconds


class Checkpointer:
    """Saves checkpoints to the directory of an attempt, by time and at the ends of epochs; use as a context manager.

    Records `resumed`, `checkpoint` and `warning`. Leaving the context waits for the last write.
    """

    def __init__(
        self, step: TrainStep, info: DatasetInfo, report: RecordWriter, *,
        directory: Path | None = None, seconds: float | None = None, facts: dict[str, JsonValue] | None = None,
        verified: Sequence[Digest] = (), memory: MemoryUse | None = None,
    ) -> None:  # fmt: skip
        """Save to the existing `directory`, every `seconds`; None: nowhere, or as often as the schedule allows.

        Files that were `verified` are hashed again only if they look different now. `memory` decides whether tensors
        are copied; None: always.
        """
        self._step = step
        self._plan = step.plan  # a later attempt begins with the plan that this one was given
        self._info = info
        self._report = report
        self._directory = directory
        self._schedule = CheckpointSchedule(seconds)
        self._facts = facts or {}
        self._digests = Digests(verified)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        # At once: the prepared data may be deleted any time after they were opened.
        self._origin = self._writer.submit(self._made_from)
        self._pending: Future[SavedCheckpoint] | None = None
        self._memory = memory
        self._copies: dict[str, tuple[Tensor, TensorView]] = {}
        # A model may have a mask of infinities; only tensors that are finite at first have to stay finite.
        self._never_finite = {name for name, tensor in changing_tensors(step) if not is_finite(tensor)}
        self._kept: list[Path] = []
        self._position: int | None = None  # of the newest checkpoint, written or being written
        self._failing = False

    def _made_from(self) -> Origin:
        """Return the origin of the training; runs in the thread, because it reads the whole data set."""
        return Origin(
            spec=self._step.spec, plan=self._plan, dataset=self._info.name,
            data_sha256=dataset_store.checksum(self._info, self._digests), facts=self._facts,
        )  # fmt: skip

    def data_sha256(self) -> str:
        """Return the SHA-256 of the prepared samples; raises `DatasetError`: they cannot be read any more."""
        return self._origin.result().data_sha256

    def resume(self, paths: Sequence[Path]) -> TrainState:
        """Restore the first usable one of `paths` (JSON files) and return its state, else the initial state.

        Raises:
            InvalidConfig: the spec does not suit the data set.
            DatasetError: the data set cannot be read any more.
        """
        steps = split(self._step.spec, self._info).steps
        for path in paths:
            try:
                state = self._load(path, steps)
            except InvalidCheckpoint as error:
                self._report.write("warning", {"message": skip_message(path, error)})
                continue
            self._kept, self._position = [path], state.position
            self._schedule.restart()
            resumed: dict[str, JsonValue] = {"epoch": state.epoch, "step": state.step, "checkpoint": str(path)}
            self._report.write("resumed", resumed, durable=True)
            return state
        return TrainState(steps=steps, max_steps=self._step.spec.max_steps, metric=self._step.spec.metric)

    def _load(self, path: Path, steps: int) -> TrainState:
        state = format.read(path, self._step.spec, self._origin.result().data_sha256, self._digests).course
        if state.steps != steps:
            raise InvalidCheckpoint(f"its epochs have {state.steps} steps instead of {steps}")
        try:
            with safe_open(tensors_of(path), framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
                restore(self._step, tensors, best=bool(state.history))
        except (OSError, SafetensorError) as error:
            raise InvalidCheckpoint(f"safetensors says {error}") from error
        return state

    def due(self) -> bool:
        """Whether the time for a checkpoint has come and no other is being written."""
        return self._ready() and self._schedule.due()

    def affordable(self) -> bool:
        """Whether a checkpoint at the end of an epoch would cost no more than its share."""
        return self._ready() and self._schedule.affordable()

    def _ready(self) -> bool:
        """Whether there is a directory, and no checkpoint is being written."""
        if self._directory is None:
            return False
        self._collect(wait=False)
        return self._pending is None

    def save(self, state: TrainState) -> None:
        """Start a checkpoint, unless the last one is at the same position; a failed write is a `warning`.

        Raises:
            Diverged: a tensor is not finite any more; earlier checkpoints stay.
        """
        began = time.perf_counter()
        self._collect(wait=True)
        if self._directory is None or state.position == self._position:
            return
        has_room = self._has_room()
        tensors = self._copied(state) if has_room else self._live(state)
        snapshot = replace(state, history=list(state.history))
        self._position = state.position
        seconds = self._schedule.restart() - began
        self._pending = self._writer.submit(self._write, self._directory, snapshot, tensors, seconds)
        if not has_room:
            self._collect(wait=True)

    def save_sync(self, state: TrainState) -> None:
        """Save a checkpoint and wait until it is on disk."""
        self.save(state)
        self._collect(wait=True)

    def _has_room(self) -> bool:
        """Whether the copies, which stay, leave so much memory that the micro-batch need not be halved for them."""
        used = None if self._memory is None or self._copies else self._memory.bytes()
        if self._memory is None or used is None:
            return True
        copied = sum(tensor.nbytes for _, tensor in changing_tensors(self._step))
        return used + copied <= SHORT * self._memory.limit

    def _live(self, state: TrainState) -> LiveTensors:
        """Return every tensor as it is; raises `Diverged`."""
        tensors = dict(changing_tensors(self._step))
        for name, tensor in tensors.items():
            self._require_finite(name, tensor, state)
        return LiveTensors(tensors | {f"best/{name}": tensor for name, tensor in self._step.best.items()})

    def _require_finite(self, name: str, tensor: Tensor, state: TrainState) -> None:
        if not (is_finite(tensor) or name in self._never_finite):
            raise divergence_error(f"{name} holds NaN or an infinity", state.position, self._step.spec)

    def _copied(self, state: TrainState) -> dict[str, TensorView]:
        """Copy every tensor into the memory of the last copies, as new pages cost more; raises `Diverged`."""
        for name, tensor in changing_tensors(self._step):
            if name not in self._copies:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype)
                self._copies[name] = copy, tensor_view(copy)
            self._require_finite(name, self._copies[name][0].copy_(tensor), state)
        best = {f"best/{name}": tensor_view(tensor) for name, tensor in self._step.best.items()}
        return {name: blob for name, (_, blob) in self._copies.items()} | best

    def _write(
        self, directory: Path, state: TrainState, tensors: Mapping[str, TensorView], seconds: float
    ) -> SavedCheckpoint:
        """Write a checkpoint and prune older ones; runs in the thread."""
        began, processor_began = time.perf_counter(), time.thread_time()
        path, size = format.write(directory, self._origin.result(), state, tensors)
        self._kept = [*(kept for kept in self._kept if kept != path), path][-KEPT:]
        prune(directory, self._kept)
        return SavedCheckpoint(
            path=path, epoch=state.epoch, step=state.step, seconds=seconds,
            write_seconds=time.perf_counter() - began,
            processor_seconds=time.thread_time() - processor_began, bytes=size,
        )  # fmt: skip

    def _collect(self, *, wait: bool) -> None:
        """Record the result of the pending write once it is done."""
        if self._pending is None or not (wait or self._pending.done()):
            return
        pending, self._pending = self._pending, None
        try:
            written = pending.result()
        except (OSError, DatasetError) as error:
            self._position = None
            why = error.strerror if isinstance(error, OSError) else None
            if not self._failing:  # once for each series of failures
                self._report.write("warning", {"message": (
                    f"no checkpoint can be written to {self._directory} ({why or error}); "
                    "training continues, but a kill loses the work since the last one"
                )})  # fmt: skip
            self._failing = True
            return
        self._failing = False
        self._schedule.cost = written.cost
        self._schedule.write_seconds = written.write_seconds
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
