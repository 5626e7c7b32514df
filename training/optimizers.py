"""The optimizers, fused (one kernel over all parameters instead of several for each), and quick to begin with.

torch's own tell the tracer of torch.compile to stay out of them, and import all of it for that: 1.5 s at the start of
each process on a quiet machine. Nothing here traces a step, so these go without. Where a later torch is made otherwise,
all that is lost are those seconds: `__dynamo_disable` is what torch/_compile.py keeps of a function that is not to be
traced, and what lies beneath the decorators of `step` is the step.
"""

import inspect
from collections.abc import Sequence
from typing import Final

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from training.spec import TrainSpec

UNTRACED: Final = (Optimizer.add_param_group, Optimizer.zero_grad)


class PlainAdamW(AdamW):
    """AdamW without the tracer."""

    step = torch.no_grad()(inspect.unwrap(AdamW.step))


class PlainSGD(SGD):
    """SGD without the tracer."""

    step = torch.no_grad()(inspect.unwrap(SGD.step))


def optimizer(spec: TrainSpec, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """Return the optimizer that the spec names, for `parameters`."""
    for method in UNTRACED:
        plain = inspect.unwrap(method)
        vars(plain)["__dynamo_disable"] = plain
    match spec.optimizer:
        case "adamw":
            return PlainAdamW(parameters, lr=spec.learning_rate, weight_decay=spec.weight_decay, fused=True)
        case "sgd":
            return PlainSGD(
                parameters, lr=spec.learning_rate, momentum=spec.momentum,
                nesterov=spec.momentum > 0, weight_decay=spec.weight_decay, fused=True,
            )  # fmt: skip
