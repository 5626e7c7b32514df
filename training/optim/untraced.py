"""AdamW and SGD without the tracer of torch.compile, fused: one kernel over all parameters.

torch's own tell the tracer of torch.compile to stay out of them, and import all of it for that: 1.5 s at the start of
each process on a quiet machine. Nothing here traces a step, so these go without. Where a later torch is made otherwise,
all that is lost are those seconds: `__dynamo_disable` is what torch/_compile.py keeps of a function that is not to be
traced, and what lies beneath the decorators of `step` is the step.
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
