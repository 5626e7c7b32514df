"""The profiling child: `python -m training.loop.profiling_child REQUEST` times the phases of some training steps."""

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from pydantic import ConfigDict, JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass

from preflight.container.counters import SystemCounters
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import ChildStopped
from preflight.files.journal import JournalWriter
from training.process.child_main import serve_request
from training.step.profiler import PhaseTimer

if TYPE_CHECKING:
    from torch import Tensor

    from training.step.train_step import TrainStep

MODULE: Final = "training.loop.profiling_child"
VALIDATED: Final = 1_000
"""Most samples whose validation is timed; the others take as long."""


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class ProfileRequest:
    """Request to the profiling child."""

    spec: TrainSpec
    plan: Plan
    store: Path
    """The prepared data set."""
    warm_up: int
    """First steps, which are recorded separately."""
    steps: int
    """Steps after them, at least one."""


REQUEST = TypeAdapter(ProfileRequest)


def profile(request: ProfileRequest, journal: JournalWriter, should_stop: Callable[[], bool]) -> None:
    """Train; record the phases of the first steps, and of those after them, in `done`."""
    began = time.perf_counter()
    # torch is imported here, so that its seconds are counted.
    from training.data.batches import Batches
    from training.data.dataset_store import open_dataset
    from training.data.split import split
    from training.loop.evaluate import evaluate
    from training.step.train_step import TrainStep, prepare_process

    imported = time.perf_counter()
    prepare_process(request.plan)
    spec, store = request.spec, open_dataset(request.store)
    step = TrainStep(spec, request.plan, store.info.shape, store.info.classes)
    batches, parts = Batches(store, spec, request.plan), split(spec, store.info)
    source = chain.from_iterable(batches.of(epoch) for epoch in count())
    rates = (step.rate(number % parts.total_steps, parts.total_steps, parts.steps) for number in count())
    built = time.perf_counter()
    warm_up, _ = _time_steps(step, source, islice(rates, request.warm_up), should_stop)
    machine = SystemCounters()
    before = machine.sample()
    measured, seconds = _time_steps(step, source, islice(rates, request.steps), should_stop)
    noise = machine.sample().since(before)
    validated, validation_s = min(parts.validation, VALIDATED), 0.0
    if validated:
        images, labels = store.train_images[-validated:], store.train_labels[-validated:]
        started = time.perf_counter()
        evaluate(step, images, labels, store.info.mean, store.info.std)
        validation_s = (time.perf_counter() - started) * parts.validation / validated
    journal.write("done", {
        "epoch_steps": parts.steps, "validation_samples": parts.validation, "validation_s": validation_s,
        "import_s": imported - began, "build_s": built - imported, "warm_up": warm_up, "measured": measured,
        "median_step_s": statistics.median(seconds), "slowest_step_s": max(seconds),
        "disturbed": noise.describe() if noise.noisy else "",
    })  # fmt: skip


def _time_steps(
    step: "TrainStep", source: Iterator["tuple[Tensor, Tensor]"], rates: Iterator[float],
    should_stop: Callable[[], bool],
) -> tuple[dict[str, JsonValue], list[float]]:  # fmt: skip
    """Run a step at each of `rates`; return the profile of all and the seconds of each."""
    timer, seconds = PhaseTimer(), []
    step.end_phase = timer
    for rate in rates:
        began = time.perf_counter()
        images, labels = next(source)
        timer("data")
        step.run(images, labels, rate)
        timer("other")
        seconds.append(time.perf_counter() - began)
        if should_stop():
            raise ChildStopped("the profile was stopped by a signal")
    return timer.profile(len(seconds)), seconds


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, profile)


if __name__ == "__main__":
    main()
