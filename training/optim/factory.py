"""Optimizer factory: the optimizer that a spec names, and the bytes of its state."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from preflight.contract.spec import TrainSpec
from training.optim.muon import Muon, hidden_matrices
from training.optim.untraced import PlainAdamW, PlainSGD, untrace


def optimizer(
    spec: TrainSpec, parameters: Sequence[nn.Parameter], networks: int = 1, dtype: torch.dtype = torch.float32
) -> Optimizer:
    """Return the optimizer that the spec names, for all `parameters` of an ensemble of `networks`.

    Parameters that want no gradient are left as they are. All are float32; the rest of the step computes in `dtype`,
    and so does the optimizer where that is faster.
    """
    untrace()
    trained = [each for each in parameters if each.requires_grad]
    match spec.optimizer:
        case "adamw":
            return PlainAdamW(trained, lr=spec.learning_rate, weight_decay=spec.weight_decay, fused=True)
        case "muon":
            return Muon(
                parameters, networks, dtype,
                lr=spec.learning_rate, momentum=spec.momentum, weight_decay=spec.weight_decay,
            )  # fmt: skip
        case "sgd":
            return PlainSGD(
                trained, lr=spec.learning_rate, momentum=spec.momentum,
                nesterov=spec.momentum > 0, weight_decay=spec.weight_decay, fused=True,
            )  # fmt: skip


def state_bytes(spec: TrainSpec, parameters: Sequence[nn.Parameter], networks: int = 1) -> int:
    """Return the bytes of the optimizer's state for the `parameters` of an ensemble of `networks`."""
    one = sum(parameter.nbytes for parameter in parameters if parameter.requires_grad)
    match spec.optimizer:
        case "adamw":
            return 2 * one
        case "muon":
            return 2 * one - sum(parameter.nbytes for parameter in hidden_matrices(parameters, networks))
        case "sgd":
            return one if spec.momentum > 0 else 0
