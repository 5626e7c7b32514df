"""Waiting: how long OpenMP's threads spin before they sleep, in a quota that does not grant each a processor.

    python -m bench.calibration.threads.waiting REQUEST

runs in the container under the variables of a variant, and prints samples per second of a few seconds of steps.
"""

import sys
from collections.abc import Mapping
from typing import Final

from bench.calibration.matrix.cells import MEMORY, Cell
from bench.calibration.matrix.grid import REQUEST, block, request_of, rounded_up, run_inside
from bench.calibration.matrix.main import prepared_place
from bench.container import container
from bench.record import samples, start
from preflight.contract.plan import MemoryFormat

MODULE: Final = "bench.calibration.threads.waiting"
PROCESSORS: Final = 1.5
MODELS: Final = ("cnn", "own_task")
PERIODS: Final = 50
"""Of a measurement: 5 s."""
ROUNDS: Final = 7
FORMATS: Final[Mapping[str, MemoryFormat]] = {
    "cnn": "channels_last", "resnet18": "channels_last", "shapes-net": "contiguous",
}  # fmt: skip
"""Of the best plans of the grid, which are in bfloat16."""
VARIANTS: Final[Mapping[str, Mapping[str, str]]] = {
    "as it comes": {},
    "10,000 turns": {"GOMP_SPINCOUNT": "10000"},
    "none": {"OMP_WAIT_POLICY": "passive"},
}
"""libgomp's own count is 300,000 where there are processors for all threads; it does not know of quotas."""


def measure_waiting() -> None:
    """Print and write samples per second by how long threads spin, in turns."""
    record = start("calibration-waiting", "python -m bench.calibration waiting", "process starts, imports and data")
    record.head("model", "spinning", "samples/s", "of libgomp's own count")
    names = tuple(VARIANTS)
    cells = [Cell(processors=PROCESSORS, memory="1g", workload=model) for model in MODELS]
    with prepared_place(cells) as place:
        for cell in cells:
            request, rates = request_of(cell, place), {name: list[float]() for name in VARIANTS}
            with container(cell.processors, MEMORY[cell.memory]) as box:
                for number in range(ROUNDS):
                    for name in names[::-1] if number % 2 else names:
                        rates[name].append(float(run_inside(box, place, MODULE, request, VARIANTS[name])))
            own = next(iter(rates.values()))
            for name, found in rates.items():
                ratios = [rate / before for rate, before in zip(found, own, strict=True)]
                record.row(request.spec.model, name, samples(found, ",.0f"), samples(ratios, ".2f"))
    record.write()


def main() -> None:
    """Train for `PERIODS` on as many threads as the quota has processors, rounded up; print samples per second."""
    from training.step.train_step import prepare_process

    request = REQUEST.validate_json(sys.argv[1])
    plan = rounded_up(request, FORMATS[request.spec.model])
    prepare_process(plan)
    print(block(request, plan, PERIODS))


if __name__ == "__main__":
    main()
