"""The grid of a cell: threads x precision x memory format, by throughput over whole CFS periods.

    python -m tools.bench.calibration.matrix.grid REQUEST

runs in the container and prints samples per second of each plan. Every plan is tried for half a second; those near the
best are measured again, round after round, each round in the opposite order of the one before, and those nearest to it
for a minute: which of two plans is faster in a fraction of a core changes every ten seconds (docs/decisions.md). The
best of many was also lucky, so that a comparison errs against the plan that was chosen.
"""

import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from preflight.contract.plan import MemoryFormat, Plan, Precision
from preflight.contract.spec import TrainSpec
from tools.bench.calibration.matrix.cells import WORKLOADS, Cell
from tools.bench.calibration.matrix.train import Place, plan_key
from tools.bench.container import PERIOD_US, Container

if TYPE_CHECKING:
    from torch import Tensor

LOOK_PERIODS: Final = 5
PERIODS: Final = 20
"""Periods of a block: the rest of the first one's quota, and of the last one's, is 1/20 each at most."""
ROUNDS: Final = 3
GOES_ON: Final = 1.3
"""How much slower than the best of the first look a plan may be to be measured again."""
NEAREST: Final = 1.2
"""The same of the rounds, to be measured for longer."""
SECONDS: Final = 60.0
"""Seconds of the rounds that follow, models and warming up included."""
PRECISIONS: Final[tuple[Precision, ...]] = ("float32", "bfloat16")
FORMATS: Final[tuple[MemoryFormat, ...]] = ("contiguous", "channels_last")
LIMIT: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A measurement in a container with a quota of `processors`."""

    spec: TrainSpec
    processors: float
    store: Path
    """The prepared data set."""


REQUEST: Final = TypeAdapter(Request)
FIGURES: Final = TypeAdapter(dict[str, float])


def measure_grid(cell: Cell, box: Container, place: Place) -> dict[str, float] | None:
    """Measure the grid in a container; None where it did not end, as without enough memory."""
    try:
        return FIGURES.validate_json(
            run_inside(box, place, "tools.bench.calibration.matrix.grid", request_of(cell, place))
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"{cell.name}: no grid: {error}", file=sys.stderr)
        return None


def request_of(cell: Cell, place: Place) -> Request:
    """Return the request of a cell."""
    workload = WORKLOADS[cell.workload]
    spec = TrainSpec(dataset=workload.dataset, model=workload.model, batch_size=workload.grid_batch)
    store = place.prepared / "datasets" / f"{workload.dataset}.safetensors"
    return Request(spec=spec, processors=cell.processors, store=store)


def run_inside(
    box: Container, place: Place, module: str, request: Request, variables: Mapping[str, str] | None = None
) -> bytes:
    """Run a module in a container with a request as its argument; return the last line that it prints.

    `variables` are added to its environment.

    Raises:
        CalledProcessError, TimeoutExpired: it did not end well, or not in time.
    """
    command = [*box.enter, sys.executable, "-P", "-m", module, REQUEST.dump_json(request).decode()]
    environment = {**place.environment("grid"), **(variables or {})}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=LIMIT, check=True)
    return done.stdout.strip().rpartition(b"\n")[2]


def plans(request: Request) -> Iterator[Plan]:
    """Yield the grid: one thread, two, and as many as the quota has processors."""
    threads = dict.fromkeys((1, 2, math.ceil(request.processors)))
    for count, precision, memory_format in itertools.product(threads, PRECISIONS, FORMATS):
        yield Plan(threads=count, micro_batch=request.spec.batch_size, precision=precision, memory_format=memory_format)


def main() -> None:
    """Measure the request on the command line, and print the rates."""
    from training.step.train_step import prepare_process

    request = REQUEST.validate_json(sys.argv[1])
    prepare_process(next(plans(request)))
    rates = {plan: [block(request, plan, LOOK_PERIODS)] for plan in plans(request)}
    best = max(rate for (rate,) in rates.values())
    near = [plan for plan, (rate,) in rates.items() if rate * GOES_ON >= best]
    for plan in near:
        rates[plan].clear()
    for number in range(ROUNDS):
        add_round(request, near, rates, number)
    best = max(statistics.fmean(rates[plan]) for plan in near)
    nearest = [plan for plan in near if statistics.fmean(rates[plan]) * NEAREST >= best]
    end = time.monotonic() + SECONDS
    for number in itertools.count(ROUNDS) if len(nearest) > 1 else ():
        if time.monotonic() >= end:
            break
        add_round(request, nearest, rates, number)
    print(json.dumps(named(rates)))


def add_round(request: Request, chosen: Sequence[Plan], rates: Mapping[Plan, list[float]], number: int) -> None:
    """Measure each of the chosen plans once; every other round the other way round."""
    for plan in reversed(chosen) if number % 2 else chosen:
        rates[plan].append(block(request, plan, PERIODS))


def named(rates: Mapping[Plan, Sequence[float]]) -> dict[str, float]:
    """Return the mean rate of each plan by its name: a training waits for the slow blocks, too."""
    return {
        plan_key(plan.threads, plan.precision, plan.memory_format): statistics.fmean(each)
        for plan, each in rates.items()
    }


def block(request: Request, plan: Plan, periods: int) -> float:
    """Train under a plan over whole CFS periods, warmed up; return samples per second."""
    steps = train_steps(request, plan)
    began, end = time.perf_counter(), periods * PERIOD_US / 1e6
    for number, _ in enumerate(steps, 1):
        elapsed = time.perf_counter() - began
        if elapsed >= end:
            return number * request.spec.batch_size / elapsed
    raise AssertionError("batches do not end")


def train_steps(request: Request, plan: Plan) -> "Iterator[Tensor]":
    """Build and warm up a model under a plan; return an endless series of steps, which run as they are asked for."""
    import torch

    from training.data.batches import Batches
    from training.data.dataset_store import open_dataset
    from training.step.train_step import TrainStep

    store, spec = open_dataset(request.store), request.spec
    step = TrainStep(spec, plan, store.info.shape, store.info.classes)
    torch.set_num_threads(plan.threads)
    batches = (batch for epoch in itertools.count() for batch in Batches(store, spec, plan).of(epoch))
    for images, labels in itertools.islice(batches, 2):
        step.run(images, labels, spec.learning_rate)
    return (step.run(images, labels, spec.learning_rate) for images, labels in batches)


if __name__ == "__main__":
    main()
