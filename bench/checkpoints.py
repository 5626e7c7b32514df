"""Cost of checkpoints: training with them (every 15 s and at the ends of epochs) against without.

One real training of MNIST per model, in a separate process. Its steps are cut into blocks of about 15 s, which take
turns: with checkpoints, without, without, with, and so on. Prints a Markdown table: medians and ranges over the blocks,
the cost in throughput pair by pair, and, for machines too busy for that, the share of the processor time in the blocks
with checkpoints that goes into them: into copying, in which all threads stand still, and into the writing thread.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from bench.calibration.common import mnist
from bench.record import Cell, samples, start
from training.config.plan import Plan
from training.config.spec import DEFAULTS

PAIRS: Final = 6
BLOCKS: Final = {"cnn": 3 * 429, "resnet18": 29}
"""Model -> steps of a block. Of `cnn` three whole epochs, so that each block has as many validations."""
BOUND: Final = 0.01


@dataclass(frozen=True, slots=True)
class Block:
    """What was measured of some steps."""

    on: bool
    """Whether checkpoints were made."""
    samples_per_s: float
    processor_seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What one process measured."""

    threads: int
    blocks: list[Block]
    still_seconds: list[float]
    """Of each checkpoint, as the next three."""
    write_seconds: list[float]
    writer_processor_seconds: list[float]
    sizes: list[int]


MEASURED = TypeAdapter(Measured)


def measure(model: str, store_path: Path) -> Measured:
    """Be one process: train in blocks that take turns."""
    from training.checkpoints.checkpointer import Checkpointer, SavedCheckpoint
    from training.data.dataset_store import open_dataset
    from training.errors import Cancelled
    from training.loop.train_state import TrainState
    from training.loop.train_step import TrainStep, prepare_process
    from training.loop.trainer import fit
    from training.process.journal import JournalReader, JournalWriter
    from training.system.safetensors_file import TensorView

    class Alternating(Checkpointer):
        """Keeps checkpoints in some blocks only, and measures its thread."""

        on = False
        off_since = time.perf_counter()
        processor_seconds: Final[list[float]] = []

        def turn(self, *, on: bool) -> None:
            """Begin a block: the clock stands still in those without, else each of the others began with one."""
            now = time.perf_counter()
            if on and not self.on:
                self._schedule.last += now - self.off_since
            elif self.on and not on:
                self.off_since = now
            self.on = on

        def due(self) -> bool:
            return self.on and super().due()

        def affordable(self) -> bool:
            return self.on and super().affordable()

        def _write(
            self, directory: Path, state: TrainState, tensors: Mapping[str, TensorView], seconds: float
        ) -> SavedCheckpoint:
            began = time.thread_time()
            written = super()._write(directory, state, tensors, seconds)
            self.processor_seconds.append(time.thread_time() - began)
            return written

    # The first block warms up; then with, without, without, with.
    turns = [False] + [on for pair in range(PAIRS) for on in ((True, False) if pair % 2 == 0 else (False, True))]
    spec = replace(DEFAULTS, model=model, epochs=1 + len(turns) * BLOCKS[model] // 429)
    plan = Plan(
        threads=len(os.sched_getaffinity(0)), micro_batch=spec.batch_size,
        precision="bfloat16", memory_format="channels_last",
    )  # fmt: skip
    prepare_process(plan)
    store = open_dataset(store_path)
    step = TrainStep(spec, plan, store.info.shape, store.info.classes)
    blocks: list[Block] = []
    steps, began, processor_began = 0, time.perf_counter(), time.process_time()

    def after_step() -> bool:
        """Close a block where it ends, and begin the next one; return whether it was the last."""
        nonlocal steps, began, processor_began
        steps += 1
        if steps % BLOCKS[model] == 0:
            now, processor_now = time.perf_counter(), time.process_time()
            speed = BLOCKS[model] * spec.batch_size / (now - began)
            blocks.append(Block(turns[len(blocks)], speed, processor_now - processor_began))
            began, processor_began = now, processor_now
            checkpointer.turn(on=len(blocks) < len(turns) and turns[len(blocks)])
        return len(blocks) == len(turns)

    with tempfile.TemporaryDirectory(dir=store_path.parent) as directory:
        path = Path(directory) / "journal"
        with (
            JournalWriter(path, "bench") as journal,
            Alternating(step, store.info, journal, directory=Path(directory)) as checkpointer,
        ):
            try:
                fit(step, store, journal, after_step, checkpointer.resume(()), checkpointer)
            except Cancelled:
                kept = [record.payload for record in JournalReader(path, "bench").read() if record.kind == "checkpoint"]
    del kept[-1], checkpointer.processor_seconds[-1]  # that of the end
    return MEASURED.validate_python({
        "threads": plan.threads,
        "blocks": blocks[1:],
        "still_seconds": [each["seconds"] for each in kept],
        "write_seconds": [each["write_seconds"] for each in kept],
        "writer_processor_seconds": checkpointer.processor_seconds,
        "sizes": [each["bytes"] for each in kept],
    })  # fmt: skip


def row(model: str, found: Measured) -> tuple[Cell, ...]:
    """Return the cells of a line."""
    kept, plain = ([block.samples_per_s for block in found.blocks if block.on is on] for on in (True, False))
    costs = [1 - with_them / without for with_them, without in zip(kept, plain, strict=True)]
    spent = sum(found.still_seconds) * found.threads + sum(found.writer_processor_seconds)
    share = spent / sum(block.processor_seconds for block in found.blocks if block.on)
    return (
        model, samples(plain, ",.0f"), samples(kept, ",.0f"), samples(costs, "+.2%"), f"{share:.2%}",
        samples(found.still_seconds, ".4f", " s"), samples(found.write_seconds, ".3f", " s"),
        f"{len(found.sizes)} of {statistics.median(found.sizes) / (1 << 20):.1f} MiB",
    )  # fmt: skip


def main() -> None:
    """Run the processes and print the table."""
    store = mnist().path
    record = start("checkpoints", "python -m bench.checkpoints")
    record.head("model", "samples/s without", "samples/s with", "cost", "of processor time", "standing still",
                "writing", "made")  # fmt: skip
    for model in BLOCKS:
        command = [sys.executable, "-m", "bench.checkpoints", model, str(store)]
        record.row(*row(model, MEASURED.validate_json(subprocess.check_output(command))))
    record.note(f"bound of the cost: {BOUND:.0%}; {PAIRS} pairs of blocks for each model")
    record.write()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(MEASURED.dump_python(measure(sys.argv[1], Path(sys.argv[2])))))
    else:
        main()
