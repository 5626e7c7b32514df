"""A measuring process: `python -m calibration.measure.child REQUEST` answers requests, line by line.

It decides nothing. Its parent alone knows the state of the search, so that a kill costs one measurement.
"""

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, NoReturn

from pydantic import JsonValue

from calibration.measure.protocol import BENCH, REQUEST, Bench, Check, Clear, Gauge, Measure, Probe, Request, Validate
from preflight.files.journal import JournalWriter
from training.process.child_main import StopFlag, out_of_memory, serve_request

if TYPE_CHECKING:
    from calibration.measure.benchmark import Benchmarker

MODULE: Final = "calibration.measure.child"


def measure(request: Bench, journal: JournalWriter, should_stop: StopFlag) -> None:  # noqa: ARG001 - every child's signature
    """Write `start` once, then for each order an `answer`, or `broken` for a plan that does not run."""
    began = time.perf_counter()
    from calibration.measure.benchmark import Benchmarker
    from training.data.dataset_store import open_dataset
    from training.step.train_step import prepare_process

    prepare_process(request.plan)
    bench = Benchmarker(request.spec, open_dataset(request.store), request.shares)
    # Durable: where the disk is full, this process ends with that reason, and its parent does not wait in vain.
    journal.write("start", {"import_seconds": time.perf_counter() - began}, durable=True)
    for line in sys.stdin.buffer:
        order = REQUEST.validate_json(line)
        try:
            journal.write("answer", carry_out(order, bench))
        except (RuntimeError, ValueError) as error:
            if out_of_memory(error) is not None:
                raise
            bench.clear()
            journal.write("broken", {"message": f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"})
    journal.write("done", {})


def carry_out(order: Request, bench: "Benchmarker") -> dict[str, JsonValue]:
    """Return the answer to one order, as the fields of its record."""
    match order:
        case Measure():
            return asdict(bench.measure(order))
        case Probe():
            return asdict(bench.probe(order.plan))
        case Validate():
            return asdict(bench.validate(order.plan, order.samples))
        case Check():
            return asdict(bench.check(order.plan, order.reference, order.steps, order.samples))
        case Gauge():
            return asdict(bench.gauge(order.plan))
        case Clear():
            bench.clear()
            return {}


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(BENCH, measure)


if __name__ == "__main__":
    main()
