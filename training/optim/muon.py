"""The optimizers, fused (one kernel over all parameters instead of several for each), and quick to begin with.

torch's own tell the tracer of torch.compile to stay out of them, and import all of it for that: 1.5 s at the start of
each process on a quiet machine. Nothing here traces a step, so these go without. Where a later torch is made otherwise,
all that is lost are those seconds: `__dynamo_disable` is what torch/_compile.py keeps of a function that is not to be
traced, and what lies beneath the decorators of `step` is the step.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Final, overload

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from training.config.spec import TrainSpec

UNTRACED: Final = (Optimizer.add_param_group, Optimizer.zero_grad)
NEWTON_SCHULZ: Final = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic whose iteration brings singular values near 1 (Jordan et al. 2024, "Muon")."""
ITERATIONS: Final = 5
LARGE: Final = 256
"""Rows of a matrix from which on its iteration is faster in bfloat16 (bench/orthogonal.py)."""
RMS_OF_ADAMW: Final = 0.2
"""Root mean square of an update of AdamW; matched, its learning rates and weight decays serve (Liu et al. 2025)."""


class PlainAdamW(AdamW):
    """AdamW without the tracer."""

    step = torch.no_grad()(inspect.unwrap(AdamW.step))


class PlainSGD(SGD):
    """SGD without the tracer."""

    step = torch.no_grad()(inspect.unwrap(SGD.step))


class Muon(Optimizer):
    """Orthogonalised momentum for the hidden matrices, AdamW for the rest (Jordan et al. 2024; Liu et al. 2025).

    A matrix is a parameter of at least two dimensions, a convolution's with one row for each output channel; those
    of the input and the output layer of each network are not hidden. torch.optim.Muon takes no convolution.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], networks: int, dtype: torch.dtype,
        *, lr: float, momentum: float, weight_decay: float,
    ) -> None:  # fmt: skip
        hidden = hidden_matrices(parameters, networks)
        others = [each for each in parameters if not any(each is one for one in hidden)]
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([{"params": hidden}, {"params": others}], defaults)
        self._dtype = dtype
        # Of the same group and state as ours: one place to set a rate, one to save and restore.
        self._rest = PlainAdamW(self.param_groups[1:], lr=lr, weight_decay=weight_decay, fused=True)
        self._rest.state = self.state

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters that have a gradient; return what `closure` does, which may set them."""
        loss = None if closure is None else closure()
        self._update()
        return loss

    @torch.no_grad()
    def _update(self) -> None:
        group = self.param_groups[0]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            mean = state["momentum_buffer"].lerp_(parameter.grad, 1 - group["momentum"])
            rows = parameter.grad.lerp(mean, group["momentum"]).flatten(1)
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            scale = RMS_OF_ADAMW * max(rows.shape) ** 0.5
            parameter.add_(orthogonal(rows, self._dtype).view(parameter.shape), alpha=-group["lr"] * scale)
        self._rest.step()


def hidden_matrices(parameters: Sequence[nn.Parameter], networks: int = 1) -> list[nn.Parameter]:
    """Return the weights between the first and the last layer.

    The parameters are those of so many networks alike, one after the other, each of which names its layers in order.
    """
    matrices = [each for each in parameters if each.ndim >= 2]
    size = max(1, len(matrices) // networks)
    return [each for first in range(0, len(matrices), size) for each in matrices[first : first + size][1:-1]]


def orthogonal(matrix: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return about the nearest semi-orthogonal matrix to one of float32 [R, C]: its singular values 0.7 to 1.2.

    With bfloat16 as `dtype` a large one is found in that, to within 1 to 2 %.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    rounded = dtype is torch.bfloat16 and len(wide) >= LARGE
    found = as_published(wide, dtype) if rounded else _by_squares(wide)
    return (found if matrix.shape[0] <= matrix.shape[1] else found.T).contiguous()


def _by_squares(wide: Tensor) -> Tensor:
    """Return the same in half the time: each iteration multiplies by a polynomial of wide @ wide.T.

    The product of all is found among small square matrices, which commute, and the long rows are multiplied once. Not
    in bfloat16, whose roundings the squares of a matrix of low rank would blow up.
    """
    square = wide @ wide.T
    norm = square.trace().sqrt() + 1e-7
    square = square / norm**2
    factor = product = _polynomial(square)
    for _ in range(ITERATIONS - 1):
        square = factor @ square @ factor
        factor = _polynomial(square)
        product = factor @ product
    return (product / norm) @ wide


def as_published(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the same the long way, in `dtype`: the whole matrix, no taller than wide, is multiplied in each round."""
    linear, cubic, quintic = NEWTON_SCHULZ
    found: Tensor = (wide / (wide.norm() + 1e-7)).to(dtype)
    for _ in range(ITERATIONS):
        square = found @ found.T
        found = torch.addmm(found, torch.addmm(square, square, square, beta=cubic, alpha=quintic), found, beta=linear)
    return found.type_as(wide)


def _polynomial(square: Tensor) -> Tensor:
    linear, cubic, quintic = NEWTON_SCHULZ
    found = torch.addmm(square, square, square, beta=cubic, alpha=quintic)
    found.diagonal().add_(linear)
    return found


def optimizer(
    spec: TrainSpec, parameters: Sequence[nn.Parameter], networks: int = 1, dtype: torch.dtype = torch.float32
) -> Optimizer:
    """Return the optimizer that the spec names, for the `parameters` of so many networks alike.

    The parameters are float32; `dtype` is what else the step computes in, and the optimizer where that is faster.
    """
    for method in UNTRACED:
        plain = inspect.unwrap(method)
        vars(plain)["__dynamo_disable"] = plain
    match spec.optimizer:
        case "adamw":
            return PlainAdamW(parameters, lr=spec.learning_rate, weight_decay=spec.weight_decay, fused=True)
        case "muon":
            return Muon(
                parameters, networks, dtype,
                lr=spec.learning_rate, momentum=spec.momentum, weight_decay=spec.weight_decay,
            )  # fmt: skip
        case "sgd":
            return PlainSGD(
                parameters, lr=spec.learning_rate, momentum=spec.momentum,
                nesterov=spec.momentum > 0, weight_decay=spec.weight_decay, fused=True,
            )  # fmt: skip


def state_bytes(spec: TrainSpec, parameters: Sequence[nn.Parameter], networks: int = 1) -> int:
    """Return the bytes of what the optimizer remembers from step to step, of the `parameters` of so many networks."""
    one = sum(parameter.nbytes for parameter in parameters)
    match spec.optimizer:
        case "adamw":
            return 2 * one
        case "muon":
            return 2 * one - sum(parameter.nbytes for parameter in hidden_matrices(parameters, networks))
        case "sgd":
            return one if spec.momentum > 0 else 0
