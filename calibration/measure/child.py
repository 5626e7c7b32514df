"""A measuring process: `python -m calibration.measure.child REQUEST` answers requests, line by line.

It decides nothing. Where the search stands is known by its parent alone, so that a kill costs one measurement.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, NoReturn

from pydantic import JsonValue

from calibration.measure.protocol import BENCH, REQUEST, Bench, Check, Clear, Gauge, Measure, Probe, Request, Validate
from preflight.files.journal import JournalWriter, RecordWriter
from training.group import Group
from training.process.child_main import StopFlag, out_of_memory, serve_request
from training.process.local_ranks import run_in_processes

if TYPE_CHECKING:
    from calibration.measure.benchmark import Benchmarker

MODULE: Final = "calibration.measure.child"


def measure(request: Bench, journal: JournalWriter, should_stop: StopFlag) -> None:  # noqa: ARG001 - every child's signature
    """Answer every order: `start` once, then an `answer` (or, for a plan that does not run, a `broken`) each."""
    began = time.perf_counter()
    run_in_processes(request.spec, request.plan, journal, lambda group, records: serve(request, group, records, began))


def serve(request: Bench, group: Group, journal: RecordWriter, began: float) -> None:
    """Carry out every order, as one of the processes of a plan; `began` is when this one did."""
    from calibration.measure.benchmark import Benchmarker
    from training.data.dataset_store import open_dataset
    from training.step.train_step import prepare_process

    prepare_process(request.plan)
    bench = Benchmarker(request.spec, open_dataset(request.store), request.shares, group)
    # Durable: where the disk is full, an end with that reason instead of a silence that the parent waits for.
    journal.write("start", {"import_seconds": time.perf_counter() - began}, durable=True)
    for order in read_orders(group):
        try:
            journal.write("answer", carry_out(order, bench))
        except (RuntimeError, ValueError) as error:
            # Another process of the plan may be at another order now: all of them end.
            if out_of_memory(error) is not None or request.plan.processes > 1:
                raise
            bench.clear()
            journal.write("broken", {"message": f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"})
    journal.write("done", {})


def read_orders(group: Group) -> Iterator[Request]:
    """Yield the orders that come over standard input, on every rank those that all of them carry out together."""
    while not group.leads:
        yield REQUEST.validate_json(group.tell(b""))
    for line in sys.stdin.buffer:
        order = REQUEST.validate_json(line)
        if not isinstance(order, Check | Gauge):
            group.tell(line)
        yield order


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
