"""What a training needs of the group that it is part of, and the group of one. Needs no torch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, Protocol

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.files.journal import RecordWriter
from training.prediction import Prediction

if TYPE_CHECKING:
    from torch import Tensor, nn

    from training.data.dataset_store import PreparedDataset
    from training.step.train_state import TrainState
    from training.step.train_step import TrainStep


class Group(Protocol):
    """The ranks that train together; a rank calls the methods of its own in the same order as the others."""

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
        """Find out how to train together; return the prediction of the group, for that of the leader alone."""
        ...

    def share_of(self, samples: "Tensor") -> "Tensor":
        """Return this rank's part of `samples` [N, ...]; the parts of all ranks are `samples`, each once."""
        ...

    def divisor(self, samples: int) -> float:
        """Return by what to divide the summed loss of this rank's `samples` of an effective batch."""
        ...

    def wrap(self, model: "nn.Module") -> "Callable[[Tensor], Tensor]":
        """Return the model's forward pass, after which a backward pass leaves the gradients of all ranks."""
        ...

    def accumulate(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro-batch; only the `last` one of a step has its gradients exchanged."""
        ...

    def total(self, loss: "Tensor", correct: "Tensor") -> "Callable[[], tuple[Tensor, Tensor]]":
        """Return what waits for loss and correct samples of the whole batch, for those of this rank's part."""
        ...

    def share_work(
        self, function: "Callable[[Tensor], Tensor]", inputs: "Iterable[Tensor]", costs: Sequence[float]
    ) -> "Iterator[Tensor]":
        """Yield what `function` makes of each of `inputs`, of its shape; each rank does a part, by their `costs`."""
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
        """Return what the leader tells, on every rank."""
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
        """Return all of them."""
        return samples

    def divisor(self, samples: int) -> float:
        """Return their number."""
        return samples

    def wrap(self, model: "nn.Module") -> "Callable[[Tensor], Tensor]":
        """Return the model's own forward pass."""
        return model.__call__

    def accumulate(self, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002 - as the protocol has it
        """Return a context that does nothing."""
        return _NOTHING

    def total(self, loss: "Tensor", correct: "Tensor") -> "Callable[[], tuple[Tensor, Tensor]]":
        """Return a function that returns both."""
        return lambda: (loss, correct)

    def share_work(
        self,
        function: "Callable[[Tensor], Tensor]",
        inputs: "Iterable[Tensor]",
        costs: Sequence[float],  # noqa: ARG002
    ) -> "Iterator[Tensor]":
        """Yield what `function` makes of each."""
        return map(function, inputs)

    def sum(self, figures: Sequence[float]) -> list[float]:
        """Return them."""
        return [*figures]

    def share_buffers(self, model: "nn.Module") -> None:
        """Leave them as they are."""

    def share_state(self, step: "TrainStep", state: "TrainState") -> "TrainState":  # noqa: ARG002
        """Return `state`."""
        return state

    def tell(self, told: bytes) -> bytes:
        """Return it."""
        return told

    def finish(self) -> None:
        """Do nothing."""


_NOTHING: Final = nullcontext()
ALONE: Final = Alone()
