"""AdamW and SGD without the tracer of torch.compile, fused: one kernel over all parameters.

torch's own optimizers exclude themselves from the tracer of torch.compile, and import all of it for that: 1.5 s at the
start of each process on a quiet machine. Nothing here traces a step, so these leave that out. If a later torch differs,
only those seconds are lost: `__dynamo_disable` is the attribute that torch/_compile.py sets on a function that must not
be traced, and beneath the decorators of `step` lies the step.
"""

import inspect
from typing import Final

import torch
from torch.optim import SGD, AdamW, Optimizer

UNTRACED: Final = (Optimizer.add_param_group, Optimizer.zero_grad)


class PlainAdamW(AdamW):
    """AdamW without the tracer."""

    step = torch.no_grad()(inspect.unwrap(AdamW.step))


class PlainSGD(SGD):
    """SGD without the tracer."""

    step = torch.no_grad()(inspect.unwrap(SGD.step))


def untrace() -> None:
    """Keep the tracer out of the methods that all optimizers share."""
    for method in UNTRACED:
        plain = inspect.unwrap(method)
        vars(plain)["__dynamo_disable"] = plain
