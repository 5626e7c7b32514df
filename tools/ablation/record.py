"""Record cells: `python -m tools.ablation.record REQUEST` runs in the container and prints the recording."""

import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from calibration.cache.signature import has_bfloat16
from calibration.measure.process_pool import ProcessPool, ProcessSettings
from calibration.measure.protocol import Measure, Measured, Probed
from calibration.space import thread_counts
from calibration.task import memory_for_training
from preflight.container.resources import Resources, detect
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from tools.ablation.recording import FILE, RECORDING, RecordedPlan, Recording, load
from tools.bench.calibration.common import do_nothing
from tools.bench.calibration.matrix.cells import BATCH, MEMORY, Cell
from tools.bench.calibration.matrix.grid import FORMATS, PRECISIONS, REQUEST, Request, request_of, run_inside
from tools.bench.calibration.matrix.main import prepared_place
from tools.bench.container import container
from tools.bench.record import start
from tools.faults.means import neighbours
from worker.config.settings import child_environment

ROUNDS: Final = 4
BLOCK_SECONDS: Final = 0.8
"""Seconds of each plan in each round: eight periods of a quota."""
MOST_STEPS: Final = 200
SLOW: Final = 0.5
LEAST_SAMPLES: Final = 32
"""Seconds above which a step is recorded on part of a batch, and its least samples (calibration/races/baseline.py)."""
EVAL_SAMPLES: Final = 500
PROBES: Final = (8, 32)
GATE: Final = (4, 16)
"""Steps and samples before gradients are compared."""
MANY_THREADS: Final = 16
"""Threads that an image or a user asks for, far more than there are processors."""
MODULE: Final = "tools.ablation.record"
SIZES: Final = {"cnn": "2g", "resnet18": "4g"}
"""Network -> memory: the processes of all settings stay, those of resnet18 beyond 2 GiB."""
CELLS: Final = (
    *(Cell(processors=each, memory=size, workload=name) for name, size in SIZES.items() for each in (0.5, 1, 1.5, 2)),
    *(Cell(processors=each, memory="2g", workload="own_task") for each in (0.5, 2)),
    *(Cell(processors=2, memory="2g", workload=name, busy=True) for name in ("cnn", "own_task")),
)
"""resnet18 is not among those with a neighbour: its plans take more than the ten minutes that a cell may take."""


def record(filters: Sequence[str]) -> None:
    """Record the cells that match any of the filters, all without one, and that are not recorded yet."""
    head = start("ablation", "python -m tools.ablation record", "process starts and imports")
    done = {recording.cell for recording in load()}
    cells = [cell for cell in CELLS if cell.name not in done]
    cells = [cell for cell in cells if not filters or any(cell.matches(each) for each in filters)]
    print(f"{len(cells)} of {len(CELLS)} cells are to be recorded")
    with FILE.measuring() as writer, prepared_place(cells) as place:
        for cell in cells:
            request = request_of(cell, place)
            request = replace(request, spec=replace(request.spec, batch_size=BATCH))
            writer.begin(cell.name)
            with container(cell.processors, MEMORY[cell.memory]) as box, neighbours(int(cell.busy)):
                found = RECORDING.validate_json(run_inside(box, place, MODULE, request))
            steps = cell.samples // BATCH
            writer.append(
                replace(
                    found, version=head.version, date=head.date, machine=head.machine, cell=cell.name,
                    busy=cell.busy, steps_per_epoch=steps, validation=cell.validation,
                )
            )  # fmt: skip
            print(f"{cell.name}: {len(found.plans)} plans, steps of {found.samples} samples", flush=True)


def measured(request: Request) -> Recording:
    """Measure every plan in this container, round by round."""
    resources, spec = detect(), request.spec
    own = Plan(threads=resources.cores, micro_batch=spec.batch_size)
    with tempfile.TemporaryDirectory(prefix="ablation-") as name, ExitStack() as stack:
        settings = ProcessSettings(store=request.store, directory=Path(name), environment=child_environment())
        pool = stack.enter_context(ProcessPool(spec, settings, do_nothing))
        probes = {size: pool.probe(replace(own, micro_batch=size)) for size in PROBES}
        start_s = pool.import_seconds
        samples = _samples(spec, probes[PROBES[-1]])
        plans = [own, *(plan for plan in _plans(own, resources, probes) if plan != own)]
        blocks: dict[Plan, list[Measured]] = {plan: [] for plan in plans}
        for number in range(ROUNDS):
            for plan in reversed(plans) if number % 2 else plans:
                order = Measure(plan=plan, steps=MOST_STEPS, samples=samples, most_s=BLOCK_SECONDS)
                blocks[plan].append(pool.measure(order))
        gauge_s = statistics.median(pool.gauge(own).seconds for _ in range(3))
        found = tuple(_recorded(pool, own, plan, blocks[plan]) for plan in plans)
    return Recording(
        version="", date="", machine="", cell="", processors=request.processors, busy=False,
        batch_size=spec.batch_size, samples=samples, steps_per_epoch=1, validation=0,
        threads=thread_counts(resources), affinity=len(resources.affinity), bfloat16=has_bfloat16(),
        memory_bytes=memory_for_training(resources), start_s=start_s, gauge_s=gauge_s, probes=probes, plans=found,
    )  # fmt: skip


def _samples(spec: TrainSpec, probed: Probed) -> int:
    """Return the samples of a step that is not slow."""
    cut, sample_s = spec.batch_size, probed.seconds / PROBES[-1]
    while cut // 2 >= LEAST_SAMPLES and sample_s * cut > SLOW:
        cut //= 2
    return cut


def _plans(own: Plan, resources: Resources, probes: dict[int, Probed]) -> Iterator[Plan]:
    """Yield the grid, and single changes of the user's own plan."""
    probed = probes[PROBES[-1]]
    for threads, precision, memory_format in itertools.product(thread_counts(resources), PRECISIONS, FORMATS):
        plan = replace(own, threads=threads, precision=precision, memory_format=memory_format)
        yield plan
        if probed.slow_weight_gradients and precision == "bfloat16":
            yield replace(plan, weight_gradients="products")
    if not probed.batch_statistics:
        yield replace(own, micro_batch=own.micro_batch // 2)
    yield replace(own, loader_workers=1, prefetch_factor=2)
    yield replace(own, interop=2)
    yield replace(own, eval_batch=512)
    yield replace(own, threads=MANY_THREADS)
    if len(resources.affinity) > own.threads:
        yield replace(own, affinity="pinned")


def _recorded(pool: ProcessPool, own: Plan, plan: Plan, blocks: Sequence[Measured]) -> RecordedPlan:
    steps, samples = GATE
    cosine = 1.0
    if plan.precision != own.precision:
        cosine = pool.check(plan, replace(own, threads=plan.threads), steps=steps, samples=samples).cosine
    return RecordedPlan(
        plan=plan, blocks=tuple(blocks), sample_s=pool.validate(plan, EVAL_SAMPLES).sample_s, cosine=cosine
    )


def main() -> None:
    """Measure the request on the command line, and print the recording."""
    print(json.dumps(RECORDING.dump_python(measured(REQUEST.validate_json(sys.argv[1])), mode="json")))


if __name__ == "__main__":
    main()
