"""The optimizers: torch's own, to the bit, without the import of its compiler."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from training.optimizers import optimizer
from training.spec import Optimizer, TrainSpec

SPEC = TrainSpec(dataset="digits", model="cnn", learning_rate=0.05, momentum=0.9, weight_decay=0.01)
TORCHS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.01, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(
        parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01, fused=True
    ),
}
PROGRAM = """
import sys
import torch
from dataclasses import replace
from training.plan import Plan
from training.spec import TrainSpec
from training.step import TrainStep

spec = TrainSpec(dataset="digits", model="cnn", gradient_clip=1.0)
for change in ({}, {"optimizer": "sgd"}, {"deterministic": True}):
    step = TrainStep(replace(spec, **change), Plan(threads=1, micro_batch=4), (1, 28, 28), 10)
    before = [parameter.clone() for parameter in step.parameters]
    step.run(torch.rand(4, 1, 28, 28), torch.arange(4), 0.1)
    assert not any(torch.equal(one, other) for one, other in zip(before, step.parameters))
    assert torch.are_deterministic_algorithms_enabled() == step.spec.deterministic
print(*sorted({"torch._dynamo", "torch._inductor", "sympy"} & set(sys.modules)))
"""


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_it_steps_as_torchs_own(name: Optimizer) -> None:
    """The same weights and the same state after ten steps, the learning rate changing on the way."""
    torch.manual_seed(0)
    start, gradients = torch.rand(7, 5), torch.rand(10, 7, 5)
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    ours, torchs = optimizer(replace(SPEC, optimizer=name), [mine]), TORCHS[name]([theirs])
    for number, gradient in enumerate(gradients):
        for one, parameter in ((ours, mine), (torchs, theirs)):
            one.zero_grad(set_to_none=True)
            assert parameter.grad is None
            parameter.grad = gradient.clone()
            for group in one.param_groups:
                group["lr"] = 0.05 / (1 + number)
            one.step()
    assert torch.equal(mine, theirs)
    assert not torch.equal(mine, start)
    assert ours.state[mine].keys() == torchs.state[theirs].keys() != set()
    assert all(torch.equal(value, torchs.state[theirs][key]) for key, value in ours.state[mine].items())


def test_a_training_does_not_import_the_compiler() -> None:
    """Nor one that is deterministic: it takes seconds, in each process, for what is never used there."""
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
