"""One forward pass of a training is kept and run again, with its gradients and samples; its objects are looked at."""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Final

import pytest
import torch
from torch import nn

from preflight.tuner.replay import Capture, Part, Replay
from preflight.tuner.workload import look_at

TIMES, SAMPLES, WIDTH = 7, 4, 5
Loss = Callable[[torch.Tensor], torch.Tensor]
INPUTS: Final = torch.randn(TIMES, SAMPLES, WIDTH)


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def encoder_and_head() -> tuple[list[nn.Module], Loss]:
    """Return modules that a script calls one after the other; the second one changes its input in place."""
    encoder, lstm, head = nn.Linear(WIDTH, 6), nn.Sequential(nn.ReLU(inplace=True), nn.LSTM(6, 6)), nn.Linear(6, 3)
    return [encoder, lstm, head], lambda inputs: head(lstm(encoder(inputs))[0][-1]).pow(2).mean()


def cell() -> tuple[list[nn.Module], Loss]:
    """Return a cell that is called for each time step, whose one output is computed from the other."""
    layer, head = nn.LSTMCell(WIDTH, 6), nn.Linear(6, 3)

    def loss_of(inputs: torch.Tensor) -> torch.Tensor:
        state = None
        for each in inputs:
            state = layer(each, state)
        assert state is not None
        return torch.as_tensor(head(state[0])).pow(2).mean()

    return [layer, head], loss_of


def attention() -> tuple[list[nn.Module], Loss]:
    """Return one module that mixes the sequence, and without positions takes its parts in any order."""
    layer = nn.TransformerEncoderLayer(WIDTH, 1, 16, dropout=0)
    return [layer], lambda inputs: torch.as_tensor(layer(inputs)).mean(0).pow(2).mean()


def kept(modules: list[nn.Module], loss_of: Loss) -> tuple[Part, ...]:
    capture = Capture([each for module in modules for each in module.parameters()])
    capture.start()
    loss_of(INPUTS).backward()
    with torch.no_grad():
        loss_of(INPUTS)  # an evaluation is none of it
    capture.finish()
    return capture.parts


@pytest.mark.parametrize(("make", "calls"), [(encoder_and_head, 3), (cell, TIMES + 1), (attention, 1)])
def test_parts_have_the_gradients_of_the_training_and_the_samples_are_found(
    make: Callable[[], tuple[list[nn.Module], Loss]], calls: int
) -> None:
    modules, loss_of = make()
    parts = kept(modules, loss_of)
    replay = Replay(parts)
    with replay.kept_as_it_was():
        again = replay.gradients()
        doubled = [part.doubled(SAMPLES) for part in parts]
        assert None in [part.doubled(TIMES) for part in parts]  # a sequence is no batch
    assert len(parts) == calls
    for tensor, gradient in zip(replay.parameters, again, strict=True):
        assert tensor.grad is not None and gradient is not None
        torch.testing.assert_close(gradient, tensor.grad)
    for part, twice in zip(parts, doubled, strict=True):
        assert twice is not None
        sizes = [(each.numel(), larger.numel()) for each, larger in zip(part.inputs(), twice.inputs(), strict=True)]
        assert all(larger == 2 * size for size, larger in sizes)


def test_modules_without_most_of_the_parameters_are_not_kept() -> None:
    modules, loss_of = encoder_and_head()
    assert not kept([*modules, nn.Linear(100, 100)], loss_of)


def test_a_trainer_that_cannot_say_its_steps_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trainer:
        estimated_stepping_batches = property(lambda _: 1 // 0)

    class Derived(Trainer):
        estimated_stepping_batches = property(lambda _: 70)

    module = ModuleType("lightning.pytorch.trainer.trainer")
    vars(module)["Trainer"] = Trainer
    monkeypatch.setitem(sys.modules, module.__name__, module)
    optimizer = torch.optim.SGD([torch.zeros(1)])
    refuses = Trainer()
    assert look_at(optimizer).total_steps is None
    derived = Derived()
    assert look_at(optimizer).total_steps == 70
    del refuses, derived
