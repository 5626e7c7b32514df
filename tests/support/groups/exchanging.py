"""Exchanges of ranks in a step, as JSON of the first: `python -m support.groups.exchanging RANKS WIRE polls`."""

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, get_args

import torch
from pydantic import JsonValue
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore

from training.distributed.ranks import WORTH_TELLING, Ranks, connect
from training.group import Wire

BATCH: Final = 12


def gradients(group: Ranks) -> dict[str, JsonValue]:
    """Return the gradients and figures of three steps, of which the ranks had a share each."""
    torch.manual_seed(1)
    first = nn.Linear(3, 400)
    model = nn.Sequential(first, nn.Linear(400, 800), nn.Linear(800, 1))  # more than one bucket
    images = torch.rand(BATCH, 3)
    forward = group.wrap(model)
    told: list[JsonValue] = []
    for _ in range(3):
        model.zero_grad()
        share = group.share_of(images)
        loss = forward(share).sum() / group.divisor(BATCH)
        total = group.total(loss.detach(), torch.tensor(len(share)))
        torch.autograd.backward(loss)
        whole, samples = total()
        told.append([float(whole), int(samples), summed(first.weight.grad)])
    model.zero_grad()
    alone = model(images).mean()
    torch.autograd.backward(alone)
    return {"steps": told, "alone": [float(alone), BATCH, summed(first.weight.grad)]}


def summed(gradients: Tensor | None) -> float:
    """Return the sum of the gradients of a layer that has some."""
    assert gradients is not None
    return float(gradients.sum())


def work(group: Ranks, cost: float) -> dict[str, JsonValue]:
    """Return the results of four pieces of work that cost `cost` each, and how many this rank did."""
    done: list[Tensor] = []

    def square(piece: Tensor) -> Tensor:
        done.append(piece)
        return piece**2

    found = [*group.share_work(square, [torch.full((2,), float(number)) for number in range(4)], [cost] * 4)]
    return {"found": [each.tolist() for each in found], "done": len(done)}


def exchange(rank: int, ranks: int, wire: Wire, directory: Path, *, polls: bool) -> None:
    """Exchange everything, as one of the ranks; the leader prints it."""
    connect(FileStore(str(directory / "store"), ranks), "127.0.0.1", rank, ranks, 60)
    names = [f"rank {number}" for number in range(ranks)]
    group = Ranks(rank=rank, names=names, batch_size=BATCH, on_finish=lambda: None, wire=wire, polls=polls)
    told = {"gradients": gradients(group), "dear": work(group, WORTH_TELLING), "cheap": work(group, 1.0)}
    if group.leads:
        print(json.dumps(told))


def main(ranks: int, wire: Wire, *, polls: bool) -> None:
    """Fork all ranks but the first, and be that one."""
    with TemporaryDirectory() as directory:
        for rank in range(1, ranks):
            if os.fork() == 0:
                exchange(rank, ranks, wire, Path(directory), polls=polls)
                os._exit(0)
        exchange(0, ranks, wire, Path(directory), polls=polls)
        for _ in range(1, ranks):
            assert os.wait()[1] == 0


if __name__ == "__main__":
    precision: Wire = next(each for each in get_args(Wire) if each == sys.argv[2])
    main(int(sys.argv[1]), precision, polls=sys.argv[3] == "polls")
