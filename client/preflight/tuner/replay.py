"""Replay of one forward pass of a training: its inputs are kept, and the gradients of its outputs.

The pass is that of the outermost modules that have parameters of the optimizer: the model, or its parts where a script
calls them one after the other (an encoder, then a decoder). Each part runs again by itself, from the inputs that it had
and the gradients that came back to it, so that their sum is the gradient of the whole.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ..statistics import Comparison, compare

if TYPE_CHECKING:
    import torch

Change = Callable[[], AbstractContextManager[object]]
"""Makes the context in which a change holds."""
LEAST_SHARE: Final = 0.9
"""Share of the optimizer's parameters that the called modules must have to stand for the model."""
PAIRS: Final = 7
PAIRS_SECONDS: Final = 6.0
"""Seconds after which no further pair is begun."""
MOST_CALLS: Final = 256
"""Calls of modules in one forward pass of which the inputs are kept."""
SAME: Final = 1e-3
"""Most relative difference of what a sample brings forth alone and among others: rounding is 1e-6, an effect larger."""


@dataclass(frozen=True, slots=True)
class Part:
    """One call of a module, and the gradients of its outputs."""

    module: "torch.nn.Module"
    call: Callable[..., object]
    """The module, or a compiled form of it."""
    args: tuple[object, ...]
    kwargs: dict[str, object]
    cotangents: "dict[int, torch.Tensor]" = field(default_factory=dict)
    """Gradients by the number of the output tensor, from the backward pass of the training."""

    def inputs(self) -> "list[torch.Tensor]":
        """Return the tensors among the arguments."""
        return [*tensors_of(self.args), *tensors_of(self.kwargs)]

    def fed(self, change: "Callable[[torch.Tensor], torch.Tensor]") -> "Part":
        """Return the call with changed inputs."""
        args = tuple(mapped(each, change) for each in self.args)
        return replace(self, args=args, kwargs={name: mapped(each, change) for name, each in self.kwargs.items()})

    def outputs(self, precision: AbstractContextManager[object] | None = None) -> "list[torch.Tensor]":
        """Return the output tensors of another call."""
        with precision or nullcontext():
            return [each for each in tensors_of(self.call(*self.args, **self.kwargs)) if each.requires_grad]

    def gradients(
        self, wanted: "Sequence[torch.Tensor]", precision: AbstractContextManager[object] | None
    ) -> "Sequence[torch.Tensor | None]":
        """Return the gradients of `wanted`; those of the inputs are computed, too, where the training did so."""
        import torch

        leaves = [each for each in self.inputs() if each.requires_grad]
        # A layer that works in place may not change a leaf.
        outputs = self.fed(lambda each: each.clone() if each.requires_grad else each).outputs(precision)
        return torch.autograd.grad(
            [outputs[number] for number in self.cotangents], [*wanted, *leaves],
            [each.to(outputs[number].dtype) for number, each in self.cotangents.items()], allow_unused=True,
        )[: len(wanted)]  # fmt: skip

    def without_inner(self) -> "Part":
        """Return the call without the gradients of one output by way of another one, as logits by way of a loss."""
        import torch

        outputs = self.fed(torch.clone).outputs()

        def back(given: dict[int, torch.Tensor], to: int) -> torch.Tensor | None:
            found: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
                [outputs[number] for number in given], [outputs[to]],
                [each.to(outputs[number].dtype) for number, each in given.items()],
                retain_graph=True, allow_unused=True,
            )  # fmt: skip
            return found[0]

        later = {
            number: [
                other for other, each in self.cotangents.items()
                if other != number and back({other: each}, number) is not None
            ] for number in self.cotangents
        }  # fmt: skip
        own: dict[int, torch.Tensor] = {}
        for number in sorted(later, key=lambda each: len(later[each])):
            given = {other: own[other] for other in later[number] if other in own}
            inner = back(given, number) if given else None
            own[number] = self.cotangents[number] if inner is None else self.cotangents[number] - inner
        return replace(self, cotangents=own)

    def doubled(self, count: int) -> "Part | None":
        """Return the call with twice as many samples, `count` of which it has; None: they are not found in it.

        They are found where `count` others added to them change nothing, so that no sequence is taken for a batch.
        """
        import torch

        def axis(tensor: torch.Tensor) -> int | None:
            fitting = [number for number, size in enumerate(tensor.shape) if size and size % count == 0]
            return next((number for number in fitting if tensor.shape[number] == count), next(iter(fitting), None))

        def changed(tensor: torch.Tensor) -> torch.Tensor:
            if axis(tensor) is None:
                return tensor
            mirrored = tensor.detach().flip(tuple(range(tensor.dim())))
            return mirrored / 2 if tensor.is_floating_point() else mirrored

        def joined(tensor: torch.Tensor, other: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
            along = axis(tensor)
            if along is None:
                return tensor
            return torch.cat((tensor.detach(), other(tensor)), along).requires_grad_(tensor.requires_grad)

        if all(axis(each) is None for each in self.inputs()):
            return None
        self.module.eval()
        try:
            alone, others, both = (
                [each.detach() for each in part.fed(torch.clone).outputs()]
                for part in (self, self.fed(changed), self.fed(lambda each: joined(each, changed)))
            )
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None
        finally:
            self.module.train()
        grown = dict(_grown(alone, others, both))
        if any(number not in grown for number in self.cotangents):
            return None
        gradients = {
            number: each if grown[number] is None else torch.cat((each, each), grown[number] or 0) / 2
            for number, each in self.cotangents.items()
        }
        return replace(self.fed(lambda each: joined(each, torch.Tensor.detach)), cotangents=gradients)


class Capture:
    """Keeps the inputs of one forward pass of the outermost modules that have parameters of the optimizer."""

    def __init__(self, parameters: "Sequence[torch.Tensor]") -> None:
        """Look for modules that have most of `parameters`."""
        self._sizes = {id(each): each.numel() for each in parameters}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._outer: torch.nn.Module | None = None
        self._depth = 0
        self._seen: list[Part] = []
        self.parts: tuple[Part, ...] = ()
        """The calls of the pass; empty before one was kept."""

    def start(self) -> None:
        """Keep the calls from now on, until the first gradient comes back."""
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        self._outer, self._seen = None, []
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, with_kwargs=True),
        ]

    def finish(self) -> bool:
        """Keep nothing more; return whether the calls had most of the parameters."""
        self._disarm()
        seen, self._seen = [each for each in self._seen if each.cotangents], []
        found = {id(tensor) for each in seen for tensor in each.module.parameters()}
        share = sum(size for name, size in self._sizes.items() if name in found)
        if share >= LEAST_SHARE * sum(self._sizes.values()) and seen:
            self.parts = tuple(seen)
        return bool(self.parts)

    def _disarm(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _enter(self, module: "torch.nn.Module", args: object) -> None:  # noqa: ARG002 - torch's
        import torch

        is_part = self._outer is None and module.training and torch.is_grad_enabled()
        if is_part and any(id(each) in self._sizes for each in module.parameters()):
            self._outer, self._depth = module, 0
        self._depth += module is self._outer

    def _leave(
        self, module: "torch.nn.Module", args: tuple[object, ...], kwargs: dict[str, object], output: object
    ) -> None:
        if module is not self._outer:
            return
        self._depth -= 1
        if self._depth:
            return
        self._outer = None
        if len(self._seen) == MOST_CALLS:
            self._disarm()
            self._seen = []
            return
        part = Part(module, module, args, kwargs).fed(_copied)
        self._seen.append(part)
        given = [each for each in tensors_of(output) if each.requires_grad]
        for number, tensor in enumerate(given):
            tensor.register_hook(self._keeping(part, number))

    def _keeping(self, part: Part, number: int) -> "Callable[[torch.Tensor], None]":
        def keep(gradient: "torch.Tensor") -> None:
            self._disarm()
            part.cotangents[number] = gradient.detach().clone()

        return keep


class Replay:
    """Runs forward and backward of the parts again."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Prepare to run `parts`."""
        self.parts = parts
        self.modules = list({id(each.module): each.module for each in parts}.values())
        tensors = {id(tensor): tensor for module in self.modules for tensor in module.parameters()}
        self.parameters = [each for each in tensors.values() if each.requires_grad]

    @contextmanager
    def kept_as_it_was(self) -> Iterator[None]:
        """Prepare the parts; restore running statistics and the modes of the layers afterwards."""
        import torch

        buffers = [(each, each.detach().clone()) for module in self.modules for each in module.buffers()]
        modes = [(each, each.training) for module in self.modules for each in module.modules()]
        for module in self.modules:
            module.train()
        try:
            with suppress(RuntimeError):  # a part that cannot run again fails in each measurement, which says so
                self.parts = [part.without_inner() for part in self.parts]
            yield
        finally:
            for each, training in modes:
                each.training = training
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)

    def gradients(
        self, parts: Sequence[Part] | None = None, precision: Change = nullcontext
    ) -> "Sequence[torch.Tensor | None]":  # fmt: skip
        """Return the gradients of all parameters; those of the user stay."""
        sums: dict[int, torch.Tensor] = {}
        for part in parts or self.parts:
            wanted = [each for each in part.module.parameters() if each.requires_grad]
            for tensor, gradient in zip(wanted, part.gradients(wanted, precision()), strict=True):
                if gradient is not None:
                    sums[id(tensor)] = sums[id(tensor)] + gradient if id(tensor) in sums else gradient
        return [sums.get(id(each)) for each in self.parameters]

    def race(
        self, changed: Sequence[Part] | None = None, *, precision: Change = nullcontext,
        during: Change = nullcontext,
    ) -> Comparison:  # fmt: skip
        """Return how much faster forward and backward are with these changes; both take turns."""
        pairs: list[tuple[list[float], list[float]]] = []
        began = time.perf_counter()
        with during():
            self._timed(changed, precision)
        self._timed()
        while len(pairs) < 3 or (len(pairs) < PAIRS and time.perf_counter() - began < PAIRS_SECONDS):
            own: list[float] = []
            new: list[float] = []
            for is_changed in (False, True) if len(pairs) % 2 else (True, False):
                if is_changed:
                    with during():
                        new.append(self._timed(changed, precision))
                else:
                    own.append(self._timed())
            pairs.append((own, new))
        return compare(pairs)

    def _timed(
        self, parts: Sequence[Part] | None = None, precision: Change = nullcontext
    ) -> float:  # fmt: skip
        began = time.perf_counter()
        self.gradients(parts, precision)
        return time.perf_counter() - began


def mapped(value: object, change: "Callable[[torch.Tensor], torch.Tensor]") -> object:
    """Return an argument with its tensors changed, also those in lists, tuples and dicts."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        found = copy(value)  # of its class: the fields of Transformers' outputs are attributes, too
        for name, each in value.items():
            found[name] = mapped(each, change)
        return found
    if isinstance(value, list | tuple):
        items = [mapped(each, change) for each in value]
        make: Callable[[list[object]], object] = getattr(value, "_make", type(value))  # of a named tuple
        return make(items)
    return value


def tensors_of(value: object) -> "list[torch.Tensor]":
    """Return the tensors in a value, in the order of `mapped`."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [each for part in value for each in tensors_of(part)] if isinstance(value, list | tuple) else []


def _copied(each: "torch.Tensor") -> "torch.Tensor":
    return each.detach().clone().requires_grad_(each.requires_grad)


def _grown(
    alone: "Sequence[torch.Tensor]", others: "Sequence[torch.Tensor]", both: "Sequence[torch.Tensor]"
) -> "Iterator[tuple[int, int | None]]":
    """Yield the number of each output that is that of the two batches, and the dimension of the samples in it."""
    import torch

    has_samples = any(each.dim() for each in alone)
    for number, (one, two, found) in enumerate(zip(alone, others, both, strict=False)):
        if not one.dim():  # a loss, their mean or sum; with padding it is weighted
            if has_samples or _is_same(found, (one + two) / 2) or _is_same(found, one + two):
                yield number, None
            continue
        along = next((each for each, size in enumerate(one.shape) if found.shape[each : each + 1] != (size,)), None)
        if along is not None and one.shape == two.shape and _is_same(found, torch.cat((one, two), along)):
            yield number, along


def _is_same(found: "torch.Tensor", expected: "torch.Tensor") -> bool:
    if found.shape != expected.shape:
        return False
    return bool((found.float() - expected.float()).norm() <= SAME * expected.float().norm())
