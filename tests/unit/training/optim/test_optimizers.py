"""The optimizers: torch's own, to the bit, without the import of its compiler; and Muon, for convolutions too."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from preflight.contract.spec import Optimizer, TrainSpec
from training.models.cnn import cnn, cnn_committee, cnn_small_cosine, cnn_small_valid, cnn_valid
from training.models.ensemble import Ensemble, ensemble_size
from training.optim.factory import optimizer, state_bytes
from training.optim.muon import ITERATIONS, LARGE, NEWTON_SCHULZ, hidden_matrices, orthogonal

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
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from training.step.train_step import TrainStep

spec = TrainSpec(dataset="digits", model="cnn", gradient_clip=1.0)
for change in ({}, {"optimizer": "sgd"}, {"optimizer": "muon"}, {"deterministic": True}):
    step = TrainStep(replace(spec, **change), Plan(threads=1, micro_batch=4), (1, 28, 28), 10)
    before = [parameter.clone() for parameter in step.parameters]
    step.run(torch.rand(4, 1, 28, 28), torch.arange(4), 0.1)
    assert not any(torch.equal(one, other) for one, other in zip(before, step.parameters))
    assert torch.are_deterministic_algorithms_enabled() == step.spec.deterministic
print(*sorted({"torch._dynamo", "torch._inductor", "sympy"} & set(sys.modules)))
"""


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_step_equals_torchs(name: Optimizer) -> None:
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


def test_training_does_not_import_the_compiler() -> None:
    """Nor one that is deterministic: it takes seconds, in each process, for what is never used there."""
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(8, 8), (40, 5), (64, 576), (1, 7)], ids=str)
def test_orthogonalized_matrices_have_singular_values_near_one(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """And the singular vectors of the matrix it was made of: Newton-Schulz moves nothing else."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonal(matrix, dtype)
    assert found.dtype == torch.float32
    assert found.shape == shape
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    among_the_vectors = left.T @ found @ right.T
    beside_them = among_the_vectors - torch.diag(among_the_vectors.diag())
    # A norm of all, as the largest of so many roundings is another one on each kind of processor.
    rounding = 0.02 if dtype == torch.bfloat16 and min(shape) >= LARGE else 1e-5
    assert beside_them.norm() <= rounding * found.norm()
    much = values > 0.1 * values.max()  # the smallest take more iterations, as is known of it
    assert bool(((among_the_vectors.diag()[much] > 0.6) & (among_the_vectors.diag()[much] < 1.3)).all())
    assert torch.equal(orthogonal(torch.zeros(shape)), torch.zeros(shape))


def test_a_large_matrix_of_low_rank_stays_bounded_in_bfloat16() -> None:
    """Its rounded squares have negative eigenvalues, which iterating among squares would blow up."""
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(LARGE, 1, generator=draw) @ torch.randn(1, 1200, generator=draw)
    assert float(torch.linalg.matrix_norm(orthogonal(matrix, torch.bfloat16), 2)) < 1.3


@pytest.mark.parametrize(("shape", "size"), [((8, 8), 1e-6), ((40, 5), 1.0), ((128, 864), 1e6)], ids=str)
def test_the_short_newton_schulz_equals_the_published_one(shape: tuple[int, int], size: float) -> None:
    """The iteration as it is published, on the whole matrix and in float64."""
    linear, cubic, quintic = NEWTON_SCHULZ
    matrix = size * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    wide = matrix.double() if shape[0] <= shape[1] else matrix.double().T
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(ITERATIONS):
        square = wide @ wide.T
        wide = linear * wide + (cubic * square + quintic * square @ square) @ wide
    found = orthogonal(matrix).double()
    assert torch.allclose(found if shape[0] <= shape[1] else found.T, wide, rtol=1e-3, atol=1e-4)


def test_muon_steps_as_torchs_and_other_parameters_as_adamw() -> None:
    """Hidden matrices as torch.optim.Muon, which iterates in bfloat16; the other parameters as AdamW, to the bit."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(8, 4), (8,), (6, 8), (9, 6), (3, 9), (3,)]
    start = [torch.randn(shape, generator=draw) for shape in shapes]
    mine = [nn.Parameter(each.clone()) for each in start]
    theirs = [nn.Parameter(each.clone()) for each in start]
    ours = optimizer(replace(SPEC, optimizer="muon", momentum=0.95), mine)
    hidden = [theirs[2], theirs[3]]
    assert [id(each) for each in hidden_matrices(theirs)] == [id(each) for each in hidden]
    torchs = (
        torch.optim.Muon(
            hidden, lr=0.05, weight_decay=0.01, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw"
        ),
        TORCHS["adamw"]([each for number, each in enumerate(theirs) if number not in (2, 3)]),
    )
    for number in range(10):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=draw)
            other.grad = one.grad.clone()
        for each in (ours, *torchs):
            for group in each.param_groups:
                group["lr"] = 0.05 / (1 + number)
            each.step()
    for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if number in (2, 3):
            moved = float((other - start[number]).detach().norm())
            assert float((one - other).detach().norm()) < 0.02 * moved
        else:
            assert torch.equal(one, other)


def test_the_first_and_last_layers_of_each_network_are_not_hidden() -> None:
    """Of three networks, one after the other, as of one."""
    alone, together = cnn_valid((1, 28, 28), 10), Ensemble([cnn_valid((1, 28, 28), 10) for _ in range(3)])
    shapes = [each.shape for each in hidden_matrices(list(alone.parameters()))]
    assert [each.shape for each in hidden_matrices(list(together.parameters()), 3)] == 3 * shapes
    assert hidden_matrices([nn.Parameter(torch.zeros(3))], 3) == []


def test_the_layer_behind_a_fixed_stem_is_hidden() -> None:
    """The stem is the input layer, though it is not trained."""
    trained, fixed = cnn_small_valid((1, 28, 28), 10), cnn_small_cosine((1, 28, 28), 10)
    shapes = [each.shape for each in hidden_matrices(list(trained.parameters()))]
    assert [each.shape for each in hidden_matrices(list(fixed.parameters()))] == shapes
    assert len(shapes) == 3


@pytest.mark.parametrize("make", [cnn, cnn_committee, cnn_small_cosine])
@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_optimizer_state_size_is_predicted(
    name: Optimizer, make: Callable[[tuple[int, int, int], int], nn.Module]
) -> None:
    """In bytes, but for the counters of steps."""
    model = make((1, 28, 28), 10)
    parameters = list(model.parameters())
    spec = replace(SPEC, optimizer=name)
    made = optimizer(spec, parameters, ensemble_size(model))
    torch.autograd.backward(model(torch.rand(6, 1, 28, 28)).sum())
    made.step()
    held = [value for state in made.state.values() for value in state.values() if value.ndim]
    assert sum(value.nbytes for value in held) == state_bytes(spec, parameters, ensemble_size(model))
