"""Trainings of all kinds for `preflight run`, each in a child of multiprocessing: `odd_trainings.py FOLDER`.

The process id of each is written into a file of its name.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from random import Random

import torch
import torch._dynamo  # torch imports it at an optimizer's first step: once here, and not in each child
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Batch = list[torch.Tensor]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))


def batches(seconds: float, least: int = 0) -> Iterator[Batch]:
    """Yield batches for `seconds`, at least `least` of them."""
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until or number < least:
        number += 1
        yield [torch.randn(64, 32), torch.randn(64, 1)]


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def two_optimizers() -> None:
    """Train a GAN: five steps of one network for each step of the other."""
    critic, generator = network(), network()
    first, second = torch.optim.SGD(critic.parameters(), 0.01), torch.optim.SGD(generator.parameters(), 0.01)
    for number, batch in enumerate(batches(1.5), 1):
        loss_of(critic, batch).backward()
        first.step()
        if number % 5 == 0:
            loss_of(generator, batch).backward()
            second.step()


def accumulation() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for number, batch in enumerate(batches(1.0), 1):
        loss_of(model, batch).backward()
        if number % 8 == 0:
            optimizer.step()
            optimizer.zero_grad()


def closures() -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    for batch in batches(1.0):

        def closure(batch: Batch = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)


def own_threads() -> None:
    """Train with a script that sets its threads before each step, now one and now two."""
    model, random = network(), Random(0)  # noqa: S311 - dice
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in batches(2.0, least=120):
        threads = random.choice((1, 2))
        torch.set_num_threads(threads)
        loss_of(model, batch).backward()
        assert torch.get_num_threads() == threads
        optimizer.step()


def tiny_steps() -> None:
    """Make steps of some 30 us."""
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], 0.01)
    weight.grad = torch.ones(4)
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        optimizer.step()


def forked_loader() -> None:
    _with_loader("fork")


def spawned_loader() -> None:
    _with_loader("spawn")


def scripted() -> None:
    """Train TorchScript, evaluated between steps."""
    model = torch.jit.script(network())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number, batch in enumerate(batches(1.0), 1):
        loss_of(model, batch).backward()
        optimizer.step()
        if number % 100 == 0:
            with torch.no_grad():
                for _ in range(20):
                    model(batch[0])


def ranks() -> None:
    """Train as one of two ranks, as torchrun says."""
    os.environ["WORLD_SIZE"] = "2"
    accumulation()


def new_optimizers() -> None:
    """Train with an optimizer for each epoch, while somebody sets the clock back."""
    model = network()
    for _ in range(20):
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for batch in islice(batches(60), 30):
            loss_of(model, batch).backward()
            optimizer.step()
        now = time.time()
        vars(time)["time"] = lambda now=now: now - 3600


def noisy_step(optimizer: torch.optim.SGD) -> None:
    """Make a step, and add noise to the weights."""
    torch.optim.SGD.step(optimizer)
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter += 1e-4 * torch.randn_like(parameter)


def own_optimizer() -> None:
    """Train with a class whose step calls that of its base, after a plain one was made: torch hooks both."""
    model = network()
    torch.optim.SGD(model.parameters(), 0.01)
    optimizer = type("Noisy", (torch.optim.SGD,), {"step": noisy_step})(model.parameters(), 0.01)
    for batch in islice(batches(60), 30):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def killed() -> None:
    accumulation()
    os._exit(9)


def _with_loader(method: str) -> None:
    data = TensorDataset(torch.randn(512, 32), torch.randn(512, 1))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(data, batch_size=16, num_workers=1, multiprocessing_context=method)
    for batch in loader:
        loss_of(model, batch).backward()
        optimizer.step()


CASES: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        two_optimizers, accumulation, closures, own_threads, tiny_steps, forked_loader, spawned_loader, scripted,
        ranks, new_optimizers, own_optimizer, killed,
    )
}  # fmt: skip


def main(folder: Path) -> None:
    torch.set_num_threads(1)  # next to other tests two threads wait for each other
    for name, case in CASES.items():
        child = get_context("fork").Process(target=case)
        child.start()
        (folder / name).write_text(str(child.pid))
        child.join()
        print(name, child.exitcode, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
