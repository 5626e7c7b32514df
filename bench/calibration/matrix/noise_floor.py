"""Noise floor: how well the steps of a training predict its next ones, without a change of plan, process or batch.

    python -m bench.calibration.matrix.noise_floor REQUEST

runs in the container, trains for a minute and prints the stretches. Their error is a lower bound for that of any
calibration: what other tenants of the machine use changes from second to second.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from bench.calibration.matrix.cells import MEMORY, Cell
from bench.calibration.matrix.grid import REQUEST, Request, request_of, rounded_up, run_inside, train_steps
from bench.calibration.matrix.main import prepared_place
from bench.calibration.matrix.tables import MOST, USUAL
from bench.container import container
from bench.record import Record, start
from calibration.acceptance.confirmation import STEADY_BLOCKS
from calibration.races.timing import split_steps
from preflight.container.resources import binding_quota
from preflight.container.work_clock import WorkClock
from preflight.contract.plan import Plan
from preflight.statistics import Seconds, mean_step, typical

PROCESSORS: Final = (0.25, 0.5, 1.0, 2.0)
MODELS: Final = ("cnn", "own_task")
SECONDS: Final = 60.0
STRETCH: Final = 0.5
"""Seconds of a stretch, of which both the measurement and what it predicts consist."""
MEASURED: Final = {"0.5 s": 1, "1.5 s": 3, "4.5 s": 9}
"""Stretches of a measurement."""
USUAL_LENGTH: Final = "1.5 s"
GAP: Final = 2
"""Stretches between it and what it predicts."""
PREDICTED: Final = 30
"""Stretches that it predicts: 15 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps that followed one another for `STRETCH` seconds."""

    seconds: tuple[float, ...]
    """Of each step, in the long run of a quota, as calibration measures them."""
    wall_s: float
    """Of all steps."""


ESTIMATES: Final = {"median block": typical, "mean": mean_step}
"""Of the steps of each block of a final measurement."""
STRETCHES: Final = TypeAdapter(tuple[Stretch, ...])


def measure_noise_floor() -> None:
    """Print and write the shares of predictions near what followed, by length and estimate."""
    record = start("calibration-noise", "python -m bench.calibration noise", "process starts, imports and calibration")
    cells = [Cell(processors=each, memory="1g", workload=model) for each in PROCESSORS for model in MODELS]
    columns = (f"{length}, {name}" for length in MEASURED for name in ESTIMATES)
    record.head("model", "CPU", *columns, f"{USUAL_LENGTH}, within {MOST:.0%}", "worst")
    traces: list[Sequence[Stretch]] = []
    with prepared_place(cells) as place:
        for cell in cells:
            with container(cell.processors, MEMORY[cell.memory]) as box:
                request = request_of(cell, place)
                printed = run_inside(box, place, "bench.calibration.matrix.noise_floor", request)
            traces.append(STRETCHES.validate_json(printed))
            _row(record, request.spec.model, f"{cell.processors:g}", traces[-1:])
    _row(record, "all", "", traces)
    record.write()


def _row(record: Record, model: str, processors: str, traces: Sequence[Sequence[Stretch]]) -> None:
    """Add the shares of stretches that are within `USUAL` of what was measured before them."""
    found = {
        (length, name): [each for trace in traces for each in errors(trace, count, estimate)]
        for length, count in MEASURED.items()
        for name, estimate in ESTIMATES.items()
    }
    last = found[USUAL_LENGTH, "mean"]
    shares = (_share(each, USUAL) for each in found.values())
    record.row(model, processors, *shares, _share(last, MOST), f"{max(last, key=abs):+.0%}")


def errors(trace: Sequence[Stretch], count: int, estimate: Callable[[Sequence[Seconds]], float]) -> list[float]:
    """Return by how much what followed each measurement of `count` stretches differed from it, as a share."""
    found = []
    for first in range(len(trace) - count - GAP - PREDICTED + 1):
        steps = [second for stretch in trace[first : first + count] for second in stretch.seconds]
        after = trace[first + count + GAP : first + count + GAP + PREDICTED]
        measured = sum(each.wall_s for each in after) / sum(len(each.seconds) for each in after)
        found.append(measured / estimate(list(_blocks(steps))) - 1)
    return found


def _blocks(steps: Seconds) -> Iterator[Seconds]:
    """Yield the steps in the blocks of calibration's final measurement."""
    end = 0
    for count in split_steps(len(steps), STEADY_BLOCKS):
        yield steps[end : end + count]
        end += count


def _share(found: Sequence[float], bound: float) -> str:
    return f"{sum(abs(each) <= bound for each in found) / len(found):.0%}"


def main() -> None:
    """Train for `SECONDS` in the container of the command line, and print the stretches."""
    from training.step.train_step import prepare_process

    request = REQUEST.validate_json(sys.argv[1])
    plan = rounded_up(request, "channels_last")
    prepare_process(plan)
    print(json.dumps(STRETCHES.dump_python(tuple(_stretches(request, plan)), mode="json")))


def _stretches(request: Request, plan: Plan) -> Iterator[Stretch]:
    steps, end = train_steps(request, plan), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        began, clock = time.perf_counter(), WorkClock(binding_quota())
        while time.perf_counter() < began + STRETCH:
            next(steps)
            clock.lap()
        yield Stretch(seconds=tuple(clock.timed().seconds), wall_s=time.perf_counter() - began)


if __name__ == "__main__":
    main()
