"""Which way to tune glibc's allocator: not at all, mallopt in the process, or MALLOC_* before it starts; and tcmalloc.

Each row's figures are of fresh processes that train `cnn` on real MNIST; the rows take turns. In bfloat16 with
channels_last the first second is told from those after five, and a validation of 5,000 samples is timed after them:
glibc's own allocator learns only by and by which memory not to give back.
"""

import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.tables import head, row, spread
from training.config.plan import Plan
from training.config.spec import DEFAULTS
from training.data.prepare import prepare
from training.process.launch import environment_for
from worker.config.settings import load

if TYPE_CHECKING:
    from calibration.measure.benchmark import Contender

ROUNDS: Final = 5
STEPS: Final = 60
LEARNING_SECONDS: Final = 5.0
VALIDATION: Final = 5000
WARM_UP: Final = 5
VARIABLES: Final = {
    "MALLOC_TOP_PAD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_MMAP_THRESHOLD_": str(2**31 - 1),
}
WAYS: Final = ("glibc default", "mallopt in the process", "MALLOC_* variables", "tcmalloc")


def measure(store: Path) -> None:
    """Be one process: print samples per second for each kind of plan."""
    from calibration.measure.benchmark import Contender
    from training.data.dataset_store import open_store
    from training.loop.evaluate import evaluate
    from training.loop.train_step import prepare_process

    tuned = sys.argv[2] == WAYS[1]
    plan = Plan(threads=len(os.sched_getaffinity(0)), micro_batch=128, allocator="tuned" if tuned else "default")
    prepare_process(plan)
    opened = open_store(store)
    quick = Contender(DEFAULTS, replace(plan, precision="bfloat16", memory_format="channels_last"), opened)
    quick.run(WARM_UP)
    first = _speed(quick, 1.0)
    _speed(quick, LEARNING_SECONDS)
    print(first, _speed(quick, 1.0), sep="\n")
    images, labels = opened.train_images[-VALIDATION:], opened.train_labels[-VALIDATION:]
    began = time.perf_counter()
    evaluate(quick.step, images, labels, opened.info.mean, opened.info.std)
    print(VALIDATION / (time.perf_counter() - began))
    for batch in (128, 512):
        contender = Contender(replace(DEFAULTS, batch_size=batch), replace(plan, micro_batch=batch), opened)
        contender.run(WARM_UP)
        print(batch / statistics.median(contender.run(STEPS)))


def _speed(contender: "Contender", seconds: float) -> float:
    """Return samples per second over some seconds."""
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        contender.run(1)
        steps += 1
    return steps * contender.spec.batch_size / (time.perf_counter() - began)


def main() -> None:
    """Run the processes in turns and print a table."""
    settings = load()
    store = prepare("mnist", settings.data_dir, settings.cache_dir).path
    figures: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    tcmalloc = environment_for(Plan(threads=1, micro_batch=1, allocator="tcmalloc"), {})
    if not tcmalloc:
        figures.pop(WAYS[3])
    variables = {WAYS[2]: VARIABLES, WAYS[3]: tcmalloc}
    for _ in range(ROUNDS):
        for way in figures:
            environment = {**os.environ, **variables.get(way, {})}
            command = [sys.executable, "-m", "bench.allocator", str(store), way]
            output = subprocess.check_output(command, env=environment, text=True)
            figures[way].append([float(line) for line in output.split()])
    head("cnn, samples/s", "bfloat16 channels_last, first second", "the same after 5 s", "validation then",
         "float32, batch 128", "float32, batch 512")  # fmt: skip
    for way, runs in figures.items():
        columns = zip(*runs, strict=True)
        row(way, *(spread(each, ",.0f") for each in columns))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
    else:
        main()
