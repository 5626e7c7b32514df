"""What ranks exchange in a step, as JSON of the first: `python -m support.groups.exchanging RANKS WIRE polls`."""

import json
import sys
from dataclasses import replace
from typing import Final, get_args

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.files.journal import RecordWriter
from training.distributed.ranks import WORTH_TELLING, Ranks
from training.group import Group
from training.process.local_ranks import run_in_processes
from training.seat import Wire

BATCH: Final = 12


class Silent:
    """Records of a rank, dropped."""

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        """Drop it."""


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
    """Return what became of four pieces of work that cost so much each, and how many this rank did."""
    done: list[Tensor] = []

    def square(piece: Tensor) -> Tensor:
        done.append(piece)
        return piece**2

    found = [*group.share_work(square, [torch.full((2,), float(number)) for number in range(4)], [cost] * 4)]
    return {"found": [each.tolist() for each in found], "done": len(done)}


def task(group: Group, _records: RecordWriter) -> None:
    """Exchange everything; the leader tells it."""
    assert isinstance(group, Ranks)
    group.wire, group.polls = wire, sys.argv[3] == "polls"
    told = {"gradients": gradients(group), "dear": work(group, WORTH_TELLING), "cheap": work(group, 1.0)}
    if group.leads:
        print(json.dumps(told))


if __name__ == "__main__":
    wire: Wire = next(each for each in get_args(Wire) if each == sys.argv[2])
    spec = TrainSpec(dataset="digits", model="cnn", batch_size=BATCH)
    run_in_processes(spec, replace(Plan(threads=1, micro_batch=BATCH), processes=int(sys.argv[1])), Silent(), task)
