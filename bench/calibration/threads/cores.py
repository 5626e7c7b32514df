"""Cores: which thread count is best where there are four cores or more, and which one calibration chose.

    python -m bench.calibration.threads.cores REQUEST

runs in the container, and prints samples per second of each thread count, turn by turn. Threads of small layers share
out less work than it may cost to wait for each other.
"""

import json
import os
import statistics
import sys
from collections.abc import Mapping
from typing import Final

from pydantic import TypeAdapter

from bench.calibration.matrix.cells import MEMORY, WORKLOADS, Cell
from bench.calibration.matrix.findings import Training
from bench.calibration.matrix.grid import REQUEST, Request, block, request_of, run_inside
from bench.calibration.matrix.main import prepared_place
from bench.calibration.matrix.train import plan_key, train
from bench.container import container
from bench.record import Record, samples, start
from preflight.contract.plan import MemoryFormat, Plan, Precision

MODULE: Final = "bench.calibration.threads.cores"
LEAST: Final = 4
"""Cores from which on there is a count between one and half of them."""
PERIODS: Final = 10
"""Of a turn: 1 s."""
ROUNDS: Final = 3
FORMATS: Final[Mapping[str, MemoryFormat]] = {
    "cnn": "channels_last", "resnet18": "channels_last", "shapes-net": "contiguous",
}  # fmt: skip
"""Memory format of the grid's best plan of each model, which is in bfloat16."""
Rates = dict[Precision, dict[int, list[float]]]
"""Samples per second by precision and threads, turn by turn."""
RATES: Final = TypeAdapter(Rates)


def measure_cores() -> None:
    """Print and write samples per second by threads, and what calibration chose in the same container."""
    most = len(os.sched_getaffinity(0))
    if most < LEAST:
        print(f"nothing to measure: this machine has {most} processors, and it takes {LEAST}")
        return
    record = start("calibration-cores", "python -m bench.calibration cores", "process starts, imports and data")
    record.head(
        "CPU", "model", "float32, samples/s by threads", "bfloat16, samples/s by threads", "calibration chose",
        "of the best", "predicted", "measured", "wall time", "without",
    )  # fmt: skip
    counts = [count for count in powers_of_two(most) if count >= LEAST]
    cells = [Cell(processors=count, memory="4g", workload=name) for count in reversed(counts) for name in WORKLOADS]
    with prepared_place(cells) as place:
        for cell in cells:
            request = request_of(cell, place)
            with container(cell.processors, MEMORY[cell.memory]) as box:
                calibrated, plain = (
                    train(cell, box, place, calibrate=each, with_pulse=False) for each in (True, False)
                )
                rates = RATES.validate_json(run_inside(box, place, MODULE, request))
            _add_row(record, request, rates, calibrated, plain)
            record.write()


def _add_row(record: Record, request: Request, rates: Rates, calibrated: Training, plain: Training) -> None:
    """Add a row; the plan that calibration chose compares where the same one was measured."""
    means = {
        plan_key(threads, precision, _format(request, precision)): statistics.fmean(found)
        for precision, by_threads in rates.items()
        for threads, found in by_threads.items()
    }
    chosen = means.get(calibrated.plan.rpartition(", micro-batch")[0])
    seconds = (calibrated.predicted_s, calibrated.measured_s, calibrated.wall_s, plain.wall_s)
    record.row(
        f"{request.processors:g}", request.spec.model,
        *("; ".join(f"{count}: {samples(each, ',.0f')}" for count, each in found.items()) for found in rates.values()),
        calibrated.plan or calibrated.sentence, f"{chosen / max(means.values()):.2f}" if chosen else "",
        *("" if each is None else f"{each:.1f} s" for each in seconds),
    )  # fmt: skip


def powers_of_two(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on up to `most`, and `most` itself."""
    return tuple(dict.fromkeys((*(1 << power for power in range(most.bit_length())), most)))


def main() -> None:
    """Train on each number of threads in turns; print samples per second."""
    from training.step.train_step import prepare_process

    request = REQUEST.validate_json(sys.argv[1])
    counts = powers_of_two(int(request.processors))
    prepare_process(_plan(request, 1, "float32"))
    rates: Rates = {precision: {count: [] for count in counts} for precision in ("float32", "bfloat16")}
    for number in range(ROUNDS):
        for precision, found in rates.items():
            for count in counts[:: -1 if number % 2 else 1]:
                found[count].append(block(request, _plan(request, count, precision), PERIODS))
    print(json.dumps(rates))


def _plan(request: Request, threads: int, precision: Precision) -> Plan:
    return Plan(
        threads=threads, micro_batch=request.spec.batch_size, precision=precision,
        memory_format=_format(request, precision),
    )  # fmt: skip


def _format(request: Request, precision: Precision) -> MemoryFormat:
    return FORMATS[request.spec.model] if precision == "bfloat16" else "contiguous"


if __name__ == "__main__":
    main()
