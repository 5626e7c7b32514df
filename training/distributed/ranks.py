"""The ranks of a group that trains together, over torch.distributed. The leader is always rank 0."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch._C._distributed_c10d import Store
from torch.nn.parallel import DistributedDataParallel

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.files.journal import RecordWriter
from training.checkpoints.tensors import DTYPES, changing_tensors, restore
from training.data.dataset_store import PreparedDataset
from training.distributed import gloo
from training.distributed.gradients import GradientExchange, await_message
from training.group import Wire
from training.prediction import Prediction
from training.process.child_main import out_of_memory
from training.step.train_state import TrainState
from training.step.train_step import TrainStep

LEADER: Final = 0
WORTH_TELLING: Final = 1e8
"""Cost from which on sharing the work is faster: `balanced` has 1.2e7, `best` 8.5e8 (docs/decisions.md)."""
TYPES: Final = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Shared:
    """Message of the leader about a training's state: its numbers, and type and shape of each tensor by name."""

    state: TrainState
    shapes: dict[str, tuple[str, tuple[int, ...]]]


SHARED: Final = TypeAdapter(Shared)


@dataclass(slots=True, kw_only=True)
class Ranks:
    """The connected ranks; see `Group` for the methods that a training calls."""

    rank: int
    names: Sequence[str]
    """Names of all ranks, the leader's first."""
    batch_size: int
    """Samples of an effective batch."""
    on_finish: Callable[[], None]
    deterministic: bool = False
    """Whether gradients are always added in the same order, in the first step after a resume, too."""
    wire: Wire = "float32"
    """Precision of gradients between ranks, for models that are wrapped from now on."""
    polls: bool = False
    """Whether to wait for messages awake at first."""
    _wrapped: DistributedDataParallel | None = field(default=None, init=False)
    _gradients: GradientExchange = field(init=False)

    @property
    def leads(self) -> bool:
        """Whether this rank is the leader."""
        return self.rank == LEADER

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.names)

    def measure(
        self, _spec: TrainSpec, _plan: Plan, _data: PreparedDataset, prediction: Prediction | None,
        _report: RecordWriter, /,
    ) -> Prediction | None:  # fmt: skip
        """Return `prediction`: calibration has measured these ranks."""
        return prediction

    def share_of(self, samples: Tensor) -> Tensor:
        """Return this rank's part of `samples` [N, ...]."""
        return samples.tensor_split(self.size)[self.rank]

    def divisor(self, samples: int) -> float:  # noqa: ARG002 - as the protocol has it
        """Return a rank's part of the effective batch: DistributedDataParallel averages over the ranks."""
        return self.batch_size / self.size

    def wrap(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return the forward pass of the model under DistributedDataParallel."""
        wrapped = DistributedDataParallel(
            model, gradient_as_bucket_view=True,
            find_unused_parameters=self.deterministic,  # else buckets, and the order of sums, change after a step
        )  # fmt: skip
        wrapped.broadcast_buffers = False  # its name as an argument differs between torch 2.11 and 2.13
        self._gradients = GradientExchange(rank=self.rank, ranks=self.size, wire=self.wire, polls=self.polls)
        wrapped.register_comm_hook(None, self._gradients.exchange)
        self._wrapped = wrapped
        return wrapped.__call__

    def accumulate(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro-batch; only the `last` one has its gradients exchanged."""
        return nullcontext() if last or self._wrapped is None else self._wrapped.no_sync()

    def total(self, loss: Tensor, correct: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
        """Return a function that, after the backward pass, returns loss and correct samples of the whole batch."""
        figures = self._gradients.figures = torch.stack([loss.double() / self.size, correct.double()])
        return lambda: (figures[0].to(loss.dtype), figures[1].to(correct.dtype))

    def share_work(
        self, function: Callable[[Tensor], Tensor], inputs: Iterable[Tensor], costs: Sequence[float]
    ) -> Iterator[Tensor]:
        """Yield what `function` makes of each of `inputs`, the same to the bit on every rank.

        Where it pays, each rank computes a part and sends it to the others, rounded to the precision between ranks.
        """
        if sum(costs) < WORTH_TELLING:
            return map(function, inputs)
        given, owners = [*inputs], divide(costs, self.size)
        dtype = torch.bfloat16 if self.wire == "bfloat16" else torch.float32
        told: list[Iterator[Tensor]] = []
        travels = []
        for rank in range(self.size):
            share = [each for each, owner in zip(given, owners, strict=True) if owner == rank]
            part = torch.empty(sum(each.numel() for each in share), dtype=dtype)
            if rank == self.rank:
                part = torch.cat([part[:0], *(function(each).flatten() for each in share)]).to(dtype)
            travels.append(dist.broadcast(part, rank, async_op=True))
            pieces = part.split([each.numel() for each in share])
            told.append(piece.view(each.shape).float() for piece, each in zip(pieces, share, strict=True))
        for travel in travels:
            await_message(travel, polls=self.polls)
        return (next(told[owner]) for owner in owners)

    def sum(self, figures: Sequence[float]) -> list[float]:
        """Return, for each of the figures, its sum over the ranks, added in their order."""
        own = torch.tensor(figures, dtype=torch.float64)
        parts = [torch.empty_like(own) for _ in self.names]
        dist.all_gather(parts, own)
        return [float(value) for value in torch.stack(parts).cumsum(0)[-1]]

    def share_buffers(self, model: nn.Module) -> None:
        """Put the leader's buffers into the model of every rank."""
        for buffer in model.buffers():
            dist.broadcast(buffer, LEADER)

    def share_state(self, step: TrainStep, state: TrainState) -> TrainState:
        """Put the leader's weights, optimizer state and random state into every rank; return the leader's `state`."""
        tensors = dict(changing_tensors(step)) | {f"best/{name}": value for name, value in step.best.items()}
        shapes = {name: (DTYPES[value.dtype], tuple(value.shape)) for name, value in tensors.items()}
        told = SHARED.validate_json(self.tell(SHARED.dump_json(Shared(state, shapes))))
        received = {
            name: _share(tensors.get(name) if self.leads else None, *shape) for name, shape in told.shapes.items()
        }
        if not self.leads:
            restore(step, received, best=bool(told.state.history))
        return state if self.leads else told.state

    def tell(self, told: bytes) -> bytes:
        """Return the leader's `told` on every rank."""
        length = torch.tensor(len(told))
        dist.broadcast(length, LEADER)
        data = torch.empty(int(length), dtype=torch.uint8)
        if self.leads:
            data = torch.frombuffer(bytearray(told), dtype=torch.uint8)
        dist.broadcast(data, LEADER)
        return bytes(data.tolist())

    def gather(self, figure: float) -> list[float]:
        """Return the figures of all ranks, in their order."""
        return self.sum([figure if rank == self.rank else 0.0 for rank in range(self.size)])

    def finish(self) -> None:
        """Note that the training is over."""
        self.on_finish()


def divide(costs: Sequence[float], ranks: int) -> list[int]:
    """Return for each piece of work the rank that does it: the longest first, each to the rank that has least to do."""
    owners, loads = [0] * len(costs), [0.0] * ranks
    for piece in sorted(range(len(costs)), key=lambda each: -costs[each]):
        owner = owners[piece] = loads.index(min(loads))
        loads[owner] += costs[piece]
    return owners


def _share(own: Tensor | None, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of the leader, which has it as its `own`; as bytes, since gloo does not know every type."""
    value = torch.empty(shape, dtype=TYPES[dtype]) if own is None else own.detach().contiguous()
    dist.broadcast(value.reshape(-1).view(torch.uint8), LEADER)
    return value


def is_peer_lost(error: BaseException) -> bool:
    """Whether another rank has left this one alone: gloo and the store raise plain errors of torch."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and out_of_memory(error) is None and "gloo" in str(error).lower()
    )


def connect(store: Store, address: str, rank: int, ranks: int, timeout_seconds: float) -> None:
    """Connect the ranks over gloo bound to `address`; each call of theirs waits `timeout_seconds` at most.

    Raises:
        RuntimeError: a rank cannot be reached.
    """
    gloo.register(address)
    timeout = timedelta(seconds=timeout_seconds)
    dist.init_process_group(gloo.NAME, store=store, rank=rank, world_size=ranks, timeout=timeout)
