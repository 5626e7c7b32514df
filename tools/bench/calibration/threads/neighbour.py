"""Neighbour: one thread against two in a container of two processors, one of which another process keeps busy.

    python -m tools.bench.calibration.threads.neighbour REQUEST

runs in the container, and prints samples per second of both, turn by turn. All threads of a layer wait for the one that
has no processor.
"""

import json
import sys
from typing import Final

from pydantic import TypeAdapter

from preflight.contract.plan import MemoryFormat, Plan, Precision
from tools.bench.calibration.matrix.cells import MEMORY, WORKLOADS, Cell
from tools.bench.calibration.matrix.grid import REQUEST, Request, block, request_of, run_inside
from tools.bench.calibration.matrix.main import neighbours, prepared_place
from tools.bench.container import container
from tools.bench.record import samples, start

MODULE: Final = "tools.bench.calibration.threads.neighbour"
PROCESSORS: Final = 2
PERIODS: Final = 15
"""Of a turn: 1.5 s."""
ROUNDS: Final = 5
FORMATS: Final[dict[Precision, MemoryFormat]] = {"float32": "contiguous", "bfloat16": "channels_last"}
Rates = dict[Precision, tuple[list[float], list[float]]]
"""Samples per second on one thread and on all, turn by turn."""
RATES: Final = TypeAdapter(Rates)


def measure_neighbour() -> None:
    """Print and write how many times as fast one thread is as two, alone and beside a busy process."""
    record = start(
        "calibration-neighbour", "python -m tools.bench.calibration neighbour", "process starts, imports and data"
    )
    record.head("model", "precision", "neighbour", "one thread, samples/s", "two", "one against two")
    cells = [Cell(processors=PROCESSORS, memory="2g", workload=name, busy=True) for name in WORKLOADS]
    with prepared_place(cells) as place, container(PROCESSORS, MEMORY["2g"]) as box:
        for cell in cells:
            request = request_of(cell, place)
            for busy in (False, True):
                with neighbours(int(busy)):
                    rates = RATES.validate_json(run_inside(box, place, MODULE, request))
                for precision, (one, two) in rates.items():
                    ratios = [mine / theirs for mine, theirs in zip(one, two, strict=True)]
                    cells_of = samples(one, ",.0f"), samples(two, ",.0f"), samples(ratios, ".2f", "x")
                    record.row(request.spec.model, precision, "one, busy" if busy else "none", *cells_of)
    record.write()


def main() -> None:
    """Train on one thread and on all in turns; print samples per second."""
    from training.step.train_step import prepare_process

    request = REQUEST.validate_json(sys.argv[1])
    prepare_process(_plan(request, 1, "float32"))
    rates: Rates = {precision: ([], []) for precision in FORMATS}
    for number in range(ROUNDS):
        for precision, found in rates.items():
            for count in (1, PROCESSORS)[:: -1 if number % 2 else 1]:
                found[count > 1].append(block(request, _plan(request, count, precision), PERIODS))
    print(json.dumps(rates))


def _plan(request: Request, threads: int, precision: Precision) -> Plan:
    return Plan(
        threads=threads, micro_batch=request.spec.batch_size, precision=precision, memory_format=FORMATS[precision]
    )


if __name__ == "__main__":
    main()
