"""Two containers of one CPU each on one training, against one of them: `python -m tools.bench.distributed [ROUNDS]`.

Real agents in cgroups (needs root) with a quota of one CPU and 1 GiB each, over loopback addresses. The speeds are
those by which a group decides whether it pays: the leader's container alone, then both together, again in each round.
`python -m tools.bench.distributed accuracy [SEEDS]` trains recipe `balanced` to the end by one and by two, by seed.
"""

import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Final

from pydantic import JsonValue

from preflight.contract.plan import Plan
from preflight.contract.recipes import RECIPES
from preflight.contract.spec import TrainSpec
from preflight.files.journal import Record
from tools.bench.container import Container, container
from tools.bench.record import judged, samples, start
from training.data.prepare import prepare
from training.distributed import agent
from training.group import Seat
from training.loop import child as training_child
from training.loop.child import REQUEST, TrainingRequest
from training.process.child import Child
from training.process.runner import iter_records

MEMORY: Final = 1 << 30
NAMES: Final = ("leader", "member")
ADDRESSES: Final = ("127.0.0.1", "127.0.0.2")
PATIENCE: Final = 120.0
TRAINING_PATIENCE: Final = 600.0
MICRO_BATCHES: Final = {"resnet18": 64}
"""Samples at once, for models that take 900 to 960 MiB for a whole batch where torch is PyPI's build for CUDA."""
WANTED: Final = {"resnet18": 1.7, "best": 1.55, "balanced": 1.3}
POINTS: Final = 0.05
"""Most points between the mean accuracies of one worker and of two."""


def specs() -> dict[str, TrainSpec]:
    """Return the trainings by name."""
    resnet = TrainSpec(dataset="mnist", model="resnet18", batch_size=128, epochs=1)
    return {"resnet18": resnet, "best": RECIPES["best"], "balanced": RECIPES["balanced"]}


def main() -> None:
    """Measure the part that the command line names, or the speed."""
    part, *count = sys.argv[1:] if sys.argv[1:2] == ["accuracy"] else ["speed", *sys.argv[1:]]
    if part == "accuracy":
        measure_accuracy(int(count[0]) if count else 3)
    else:
        measure_speed(int(count[0]) if count else 5)


def measure_speed(rounds: int) -> None:
    """Measure, print and record the speed of one and of two."""
    record = start("distributed", f"python -m tools.bench.distributed {rounds}", "imports and process starts")
    record.head("training", "one, samples/s", "two, samples/s", "times", "bound", "", "between ranks", "forming, s")
    with tempfile.TemporaryDirectory() as place, containers() as boxes:
        store = mnist(Path(place))
        found: dict[str, list[dict[str, JsonValue]]] = {name: [] for name in WANTED}
        for _ in range(rounds):
            for name, spec in specs().items():
                found[name].append(measure(replace(spec, validation_samples=1000), store, Path(place), boxes))
                print(f"{name}: {found[name][-1]['speedup']:.2f} times", file=sys.stderr, flush=True)
    for name, measured in found.items():
        times = figures(measured, "speedup")
        record.row(
            name, samples(figures(measured, "alone_samples_per_s"), ",.0f"),
            samples(figures(measured, "group_samples_per_s"), ",.0f"), samples(times, ".2f"), f"{WANTED[name]}",
            judged(sorted(times)[len(times) // 2] >= WANTED[name]),
            ", ".join(sorted({str(each["wire"]) for each in measured})), samples(figures(measured, "seconds"), ".1f"),
        )  # fmt: skip
    record.note(f"Load of the machine at the end: {os.getloadavg()[0]:.1f} (of 2 vCPUs).")
    record.write()


def figures(measured: list[dict[str, JsonValue]], key: str) -> list[float]:
    """Return one figure of all rounds."""
    return [value for each in measured if isinstance(value := each[key], float)]


def measure(spec: TrainSpec, store: Path, place: Path, boxes: list[Container]) -> dict[str, JsonValue]:
    """Form a group, and return its `group_measured` with the seconds that it took to form."""
    with together(spec, store, place, boxes, PATIENCE) as told:
        seconds = next_of(told, "group")["seconds"]
        return next_of(told, "group_measured") | {"seconds": seconds}


def measure_accuracy(seeds: int) -> None:
    """Train to the end by one and by two; print and record."""
    record = start("distributed-accuracy", f"python -m tools.bench.distributed accuracy {seeds}", seeds=range(seeds))
    record.head(
        "`balanced`, MNIST", "test accuracy, mean, %", "median (range), %", "points beside one worker", "bound", ""
    )
    ways = {"one worker": 1, "two workers": 2}
    found: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as place, containers() as boxes:
        store = mnist(Path(place))
        for seed in range(seeds):
            for name, number in ways.items():
                found[name].append(
                    100 * trained(replace(RECIPES["balanced"], seed=seed), store, Path(place), boxes[:number])
                )
                print(f"seed {seed}, {name}: {found[name][-1]:.2f} %", flush=True)
    alone = fmean(found["one worker"])
    for name, accuracies in found.items():
        bounded = name == "two workers"
        record.row(
            name, f"{fmean(accuracies):.3f}", samples(accuracies, ".2f"),
            "" if name == "one worker" else f"{fmean(accuracies) - alone:+.3f}",
            f"{POINTS}" if bounded else "", judged(abs(fmean(accuracies) - alone) <= POINTS) if bounded else "",
        )  # fmt: skip
    record.write()


def trained(spec: TrainSpec, store: Path, place: Path, boxes: list[Container]) -> float:
    """Train to the end in one container or in several; return the test accuracy, 0..1."""
    if len(boxes) > 1:
        with together(spec, store, place, boxes, TRAINING_PATIENCE) as told:
            done = next_of(told, "done")
    else:
        with tempfile.TemporaryDirectory(dir=place) as directory:
            request = requested(spec, store, Path(directory), None)
            with boxes[0].inside():
                child = Child(training_child.MODULE, REQUEST.dump_json(request), Path(directory), dict(os.environ))
            with child:
                done = next_of(iter_records(child, until(time.monotonic() + TRAINING_PATIENCE)), "done")
    accuracy = done["test_accuracy"]
    assert isinstance(accuracy, float)
    return accuracy


def mnist(place: Path) -> Path:
    """Return the prepared data set, made in `place`."""
    cache = Path(os.environ.get("PREFLIGHT_DATA_DIR", place))
    return prepare("mnist", cache, place, download=False).path


def requested(spec: TrainSpec, store: Path, directory: Path, seat: Seat | None) -> TrainingRequest:
    """Return the request to train in a container of one CPU."""
    micro_batch = min(spec.batch_size, MICRO_BATCHES.get(spec.model, spec.batch_size))
    plan = Plan(threads=1, micro_batch=micro_batch, precision="bfloat16", memory_format="channels_last")
    return TrainingRequest(spec=spec, plan=plan, store=store, artifact=directory / "model", facts={}, seat=seat)


@contextmanager
def together(
    spec: TrainSpec, store: Path, place: Path, boxes: list[Container], patience: float
) -> Iterator[Iterator[Record]]:  # fmt: skip
    """Start a group that measures itself and trains; yield the leader's records. It ends with the context."""
    secret, endpoint = secrets.token_hex(16), None
    with ExitStack() as stack:
        for number, name in enumerate(NAMES):
            seat = Seat(
                name=name, leader=number == 0, address=ADDRESSES[number], endpoint=endpoint, secret=secret, least=2,
                most=2, awaited=2, gather_seconds=PATIENCE, measure=True,
            )  # fmt: skip
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place)))
            request = requested(spec, store, directory, seat)
            with boxes[number].inside():
                child = Child(agent.MODULE, REQUEST.dump_json(request), directory, dict(os.environ))
            stack.enter_context(child)
            if number == 0:
                told = iter_records(child, until(time.monotonic() + patience))
                port = next_of(told, "listening")["port"]
                assert isinstance(port, int)
                endpoint = (ADDRESSES[0], port)
        yield told


def until(deadline: float) -> Callable[[], None]:
    """Return a function that raises `TimeoutError` after `deadline`."""

    def check() -> None:
        if time.monotonic() > deadline:
            raise TimeoutError("a group took too long to form and measure itself, or a training to end")

    return check


def next_of(records: Iterator[Record], kind: str) -> dict[str, JsonValue]:
    """Return the next record of a kind; raises as `iter_records`."""
    return next(record.payload for record in records if record.kind == kind)


@contextmanager
def containers() -> Iterator[list[Container]]:
    """Make a container of one CPU and 1 GiB for each worker."""
    with ExitStack() as stack:
        yield [stack.enter_context(container(1.0, MEMORY)) for _ in NAMES]


if __name__ == "__main__":
    main()
