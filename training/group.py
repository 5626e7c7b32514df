"""Interface of a training to its group, the group of one, and the seat in a group. Needs no torch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from preflight.contract.plan import Plan
from preflight.contract.spec import STRICT, TrainSpec
from preflight.files.journal import RecordWriter
from training.prediction import Prediction

if TYPE_CHECKING:
    from torch import Tensor, nn

    from training.data.dataset_store import PreparedDataset
    from training.step.train_state import TrainState
    from training.step.train_step import TrainStep

MODULE: Final = "training.distributed.agent"
"""Child module of a training with a seat; its request is a `TrainingRequest`."""
MAX_RANKS: Final = 64

Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Wire = Literal["float32", "bfloat16"]
"""Precision of gradients between ranks."""


class Group(Protocol):
    """The ranks that train together; each calls these methods in the same order as the others."""

    @property
    def leads(self) -> bool:
        """Whether this rank is the leader: it alone writes records, checkpoints and the model."""
        ...

    def measure(
        self,
        spec: TrainSpec,
        plan: Plan,
        data: "PreparedDataset",
        prediction: Prediction | None,
        report: RecordWriter,
        /,
    ) -> Prediction | None:
        """Measure how to train together; return the prediction of the group, given that of the leader alone."""
        ...

    def share_of(self, samples: "Tensor") -> "Tensor":
        """Return this rank's part of `samples` [N, ...]; the parts of all ranks are `samples`, each once."""
        ...

    def divisor(self, samples: int) -> float:
        """Return the divisor of the summed loss of this rank's `samples` of an effective batch."""
        ...

    def wrap(self, model: "nn.Module") -> "Callable[[Tensor], Tensor]":
        """Return the model's forward pass, after which a backward pass leaves the gradients of all ranks."""
        ...

    def accumulate(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro-batch; only the `last` one of a step has its gradients exchanged."""
        ...

    def total(self, loss: "Tensor", correct: "Tensor") -> "Callable[[], tuple[Tensor, Tensor]]":
        """Return a function that waits for the whole batch's loss and correct samples, given this rank's."""
        ...

    def share_work(
        self, function: "Callable[[Tensor], Tensor]", inputs: "Iterable[Tensor]", costs: Sequence[float]
    ) -> "Iterator[Tensor]":
        """Yield `function` of each of `inputs`, which keeps its shape; each rank does a part, by the `costs`."""
        ...

    def sum(self, figures: Sequence[float]) -> list[float]:
        """Return, for each of the figures, its sum over the ranks, to the bit the same on each."""
        ...

    def share_buffers(self, model: "nn.Module") -> None:
        """Put the leader's buffers (statistics of batch norms) into the model of every rank."""
        ...

    def share_state(self, step: "TrainStep", state: "TrainState") -> "TrainState":
        """Put the leader's weights, optimizer state and random state into every rank; return the leader's `state`."""
        ...

    def tell(self, told: bytes, /) -> bytes:
        """Return the leader's `told` on every rank."""
        ...

    def finish(self) -> None:
        """Note that the training is over: from here on the leader needs the others no more."""
        ...


class Alone:
    """The group of one; changes nothing and costs nothing."""

    leads: bool = True

    def measure(
        self, _spec: TrainSpec, _plan: Plan, _data: "PreparedDataset", prediction: Prediction | None,
        _report: RecordWriter,
    ) -> Prediction | None:  # fmt: skip
        """Return `prediction`."""
        return prediction

    def share_of(self, samples: "Tensor") -> "Tensor":
        """Return all samples."""
        return samples

    def divisor(self, samples: int) -> float:
        """Return the number of samples."""
        return samples

    def wrap(self, model: "nn.Module") -> "Callable[[Tensor], Tensor]":
        """Return the model's own forward pass."""
        return model.__call__

    def accumulate(self, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002 - as the protocol has it
        """Return a context that does nothing."""
        return _NOTHING

    def total(self, loss: "Tensor", correct: "Tensor") -> "Callable[[], tuple[Tensor, Tensor]]":
        """Return a function that returns both as they are."""
        return lambda: (loss, correct)

    def share_work(
        self,
        function: "Callable[[Tensor], Tensor]",
        inputs: "Iterable[Tensor]",
        costs: Sequence[float],  # noqa: ARG002
    ) -> "Iterator[Tensor]":
        """Yield `function` of each of `inputs`."""
        return map(function, inputs)

    def sum(self, figures: Sequence[float]) -> list[float]:
        """Return the figures."""
        return [*figures]

    def share_buffers(self, model: "nn.Module") -> None:
        """Leave the buffers as they are."""

    def share_state(self, step: "TrainStep", state: "TrainState") -> "TrainState":  # noqa: ARG002
        """Return `state`."""
        return state

    def tell(self, told: bytes) -> bytes:
        """Return `told`."""
        return told

    def finish(self) -> None:
        """Do nothing."""


_NOTHING: Final = nullcontext()
ALONE: Final = Alone()


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Seat:
    """The place of one container in a group; the leader's seat has no `endpoint`, each other one has.

    The leader's agent binds a free port of `address` and reports it in the record `listening`.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """The worker's name, unique in the group."""
    leader: bool
    address: Annotated[str, Field(min_length=1)]
    """Own address, IPv4 or IPv6, to which everything binds, and to nothing else."""
    endpoint: tuple[str, Port] | None = None
    """Address and port of the leader's store."""
    secret: Annotated[str, Field(min_length=16)]
    """Id of the rendezvous: of this attempt alone, and not to be guessed."""
    least: Ranks = 1
    most: Ranks
    awaited: Ranks = 1
    """Ranks that have a seat when this one is given, its own included: the first round waits a moment for them."""
    gather_seconds: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Seconds to wait for `least` ranks, each time ranks form."""
    measure: bool = False
    """Whether the group is measured against the leader alone before it trains; the same for all seats."""
    wire: Wire | None = None
    """Precision between ranks; None: the one measured to be quicker, and float32 where nothing is measured."""

    @model_validator(mode="after")
    def _check(self) -> "Seat":
        if self.least > self.most:
            raise ValueError(f"least is {self.least}, but most is {self.most}; least must not exceed most")
        if self.awaited > self.most:
            raise ValueError(f"awaited is {self.awaited}, but most is {self.most}; await at most as many")
        if self.leader != (self.endpoint is None):
            raise ValueError("the leader's seat has no endpoint, and each other seat has the leader's")
        return self
