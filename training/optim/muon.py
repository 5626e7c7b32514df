"""Muon: orthogonalized momentum for hidden matrices (Jordan et al. 2024), AdamW for the other parameters."""

from collections.abc import Callable, Sequence
from typing import Final, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from training.group import ALONE, Group
from training.optim.untraced import PlainAdamW

NEWTON_SCHULZ: Final = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic whose iteration brings singular values near 1 (Jordan et al. 2024, "Muon")."""
ITERATIONS: Final = 5
LARGE: Final = 256
"""Rows of a matrix from which on its iteration is faster in bfloat16 (docs/decisions.md)."""
RMS_OF_ADAMW: Final = 0.2
"""Root mean square of an update of AdamW; matched, its learning rates and weight decays serve (Liu et al. 2025)."""


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
        others = [each for each in parameters if each.requires_grad and not any(each is one for one in hidden)]
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([{"params": hidden}, {"params": others}], defaults)
        self._dtype = dtype
        self.group: Group = ALONE
        """Group of ranks, each of which orthogonalizes a part of the matrices."""
        # The rest has the same group and state as this one: one place to set a rate, one to save and restore.
        self._rest = PlainAdamW(self.param_groups[1:], lr=lr, weight_decay=weight_decay, fused=True)
        self._rest.state = self.state

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters that have a gradient; return the result of `closure`, which may set the gradients."""
        loss = None if closure is None else closure()
        self._update()
        return loss

    @torch.no_grad()
    def _update(self) -> None:
        group = self.param_groups[0]
        trained = [each for each in group["params"] if each.grad is not None]
        rows = (self._momentum(each, each.grad, group["momentum"]) for each in trained)
        updates = self.group.share_work(lambda matrix: orthogonal(matrix, self._dtype), rows, [*map(cost, trained)])
        for parameter, update in zip(trained, updates, strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            scale = RMS_OF_ADAMW * max(update.shape) ** 0.5
            parameter.add_(update.view(parameter.shape), alpha=-group["lr"] * scale)
        self._rest.step()

    def _momentum(self, parameter: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        """Return the Nesterov momentum of a parameter after its gradient, as a matrix [R, C]."""
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        mean = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(mean, momentum).flatten(1)


def hidden_matrices(parameters: Sequence[nn.Parameter], networks: int = 1) -> list[nn.Parameter]:
    """Return the weights between the first and the last layer that are trained.

    The parameters are those of `networks` equal networks, one after the other, each with its layers in order.
    """
    matrices = [each for each in parameters if each.ndim >= 2]
    size = max(1, len(matrices) // networks)
    inner = [each for first in range(0, len(matrices), size) for each in matrices[first : first + size][1:-1]]
    return [each for each in inner if each.requires_grad]


def cost(parameter: Tensor) -> float:
    """Return the cost of orthogonalizing the matrix of a parameter [R, ...], in multiplications up to a factor."""
    rows = len(parameter)
    return parameter.numel() * min(rows, parameter.numel() // rows)


def orthogonal(matrix: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return about the nearest semi-orthogonal matrix to one of float32 [R, C]: its singular values 0.7 to 1.2.

    With bfloat16 as `dtype` a large one is found in that, to within 1 to 2 %.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    rounded = dtype is torch.bfloat16 and len(wide) >= LARGE
    found = _newton_schulz(wide, dtype) if rounded else _by_squares(wide)
    return (found if matrix.shape[0] <= matrix.shape[1] else found.T).contiguous()


def _by_squares(wide: Tensor) -> Tensor:
    """Run the Newton-Schulz iteration in half the time: each round multiplies by a polynomial of wide @ wide.T.

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


def _newton_schulz(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """Run the iteration as published, in `dtype`, on the whole matrix, which is at least as wide as tall."""
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
