"""What checkpoints cost: training with them (every 15 s and at the ends of epochs) against without.

One real training of MNIST per model, in a process of its own. Its steps are cut into blocks of about 15 s, which take
turns: with checkpoints, without, without, with, and so on. Prints a Markdown table: medians and ranges over the blocks,
and the cost pair by pair.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from training.journal import JournalReader, JournalWriter
from training.plan import Plan
from training.prepare import prepare
from training.spec import DEFAULTS
from worker.settings import load

PAIRS: Final = 7
BLOCKS: Final = {"cnn": 3 * 429, "resnet18": 29}
"""Model -> steps of a block. Of `cnn` three whole epochs, so that each block has as many validations."""
BOUND: Final = 0.01


def measure(model: str, store_path: Path) -> None:
    """Be one process: train, and print the samples per second of the blocks with and without checkpoints."""
    from training.errors import Cancelled
    from training.fit import fit
    from training.keeper import Keeper
    from training.step import TrainStep, prepare_process
    from training.store import open_store

    class Alternating(Keeper):
        """Keeps checkpoints in some blocks only."""

        on = False

        def due(self) -> bool:
            return self.on and super().due()

        def worthwhile(self) -> bool:
            return self.on and super().worthwhile()

    # The first block warms up; then with, without, without, with.
    turns = [False] + [on for pair in range(PAIRS) for on in ((True, False) if pair % 2 == 0 else (False, True))]
    spec = replace(DEFAULTS, model=model, epochs=1 + len(turns) * BLOCKS[model] // 429)
    plan = Plan(
        threads=len(os.sched_getaffinity(0)), micro_batch=spec.batch_size,
        precision="bfloat16", memory_format="channels_last", allocator="tuned",
    )  # fmt: skip
    prepare_process(plan)
    store = open_store(store_path)
    step = TrainStep(spec, plan, store.info.shape, store.info.classes)
    blocks: list[float] = []
    steps, began = 0, 0.0

    def after_step() -> bool:
        """Close a block where it ends, and begin the next one; return whether it was the last."""
        nonlocal steps, began
        steps += 1
        if steps % BLOCKS[model] == 0:
            now = time.perf_counter()
            blocks.append(BLOCKS[model] * spec.batch_size / (now - began))
            began = now
            keeper.on = len(blocks) < len(turns) and turns[len(blocks)]
        return len(blocks) == len(turns)

    with tempfile.TemporaryDirectory(dir=store_path.parent) as directory:
        path = Path(directory) / "journal"
        with (
            JournalWriter(path, "bench") as journal,
            Alternating(step, store.info, journal, directory=Path(directory)) as keeper,
        ):
            course, began = keeper.resume(()), time.perf_counter()
            try:
                fit(step, store, journal, after_step, course, keeper)
            except Cancelled:
                kept = [record.payload for record in JournalReader(path, "bench").read() if record.kind == "checkpoint"]
    print(json.dumps({
        "with": [speed for speed, on in zip(blocks[1:], turns[1:], strict=True) if on],
        "without": [speed for speed, on in zip(blocks[1:], turns[1:], strict=True) if not on],
        "checkpoints": kept[:-1],  # the last one is that of the end
    }))  # fmt: skip


def spread(values: list[float], form: str) -> str:
    """Return the median and the range of `values`."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    """Run the processes and print the table."""
    settings = load()
    store = prepare("mnist", settings.data_dir, settings.cache_dir).path
    print("| model | samples/s without | samples/s with | cost, pair by pair | standing still | writing | MiB |")
    print("|---|---|---|---|---|---|---|")
    for model in BLOCKS:
        command = [sys.executable, "-m", "bench.checkpoints", model, str(store)]
        found = json.loads(subprocess.check_output(command))
        costs = [1 - fast / slow for fast, slow in zip(found["with"], found["without"], strict=True)]
        still, writing, size = (
            [each[name] for each in found["checkpoints"]] for name in ("seconds", "write_seconds", "bytes")
        )
        print(
            f"| {model} | {spread(found['without'], ',.0f')} | {spread(found['with'], ',.0f')} "
            f"| {spread(costs, '+.2%')} | {spread(still, '.4f')} s | {spread(writing, '.3f')} s "
            f"| {statistics.median(size) / (1 << 20):.1f} |"
        )
    print(f"\nbound of the cost: {BOUND:.0%}; {PAIRS} pairs of blocks for each model")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
