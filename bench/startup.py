"""From torch's own import to the first training step of `cnn`, in fresh interpreters: here, and with torch's optimizer.

Prints Markdown tables: medians and ranges; all ways take turns. The step is one of real MNIST, first batch and all.
The second table is of the same import of torch, with bytecode and without.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.calibration.common import mnist
from bench.record import Record, samples, start
from bench.speed.common import fast_precision
from training.config.plan import Plan
from training.config.spec import DEFAULTS

ROUNDS: Final = 5
BOUND: Final = 1.0
WAYS: Final = {"here": "here", "torch.optim.AdamW": "torch"}


def once(way: str, store_path: str) -> dict[str, float]:
    """Be one process: import torch, then take the first step."""
    began = time.perf_counter()
    import torch

    imported = time.perf_counter()
    from training.data.batches import Batches
    from training.data.dataset_store import open_dataset
    from training.loop.train_step import TrainStep, prepare_process

    plan = Plan(threads=2, micro_batch=DEFAULTS.batch_size, precision=fast_precision(), memory_format="channels_last")
    prepare_process(plan)
    store = open_dataset(Path(store_path))
    step = TrainStep(DEFAULTS, plan, store.info.shape, store.info.classes)
    if way == "torch":
        step.optimizer = torch.optim.AdamW(step.parameters, lr=DEFAULTS.learning_rate, fused=True)
    step.run(*next(Batches(store, DEFAULTS, plan).of(0)), DEFAULTS.learning_rate)
    return {"import": imported - began, "first step": time.perf_counter() - imported}


def run(name: str, store: Path, environment: Mapping[str, str]) -> dict[str, float]:
    """Return what one process found."""
    command = [sys.executable, "-m", "bench.startup", name, str(store)]
    found: dict[str, float] = json.loads(subprocess.check_output(command, env={**os.environ, **environment}))
    return found


def optimizers(store: Path, record: Record) -> None:
    """Print how long the first step takes, with either optimizer."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, name in WAYS.items():
            found[way].append(run(name, store, {}))
    record.head("optimizer", "import of torch", "from there to the end of the first step")
    for way, runs in found.items():
        record.row(way, *(samples([run[what] for run in runs], ".2f", " s") for what in ("import", "first step")))
    record.note(f"bound of the latter, here: {BOUND:g} s")


def bytecode(store: Path, record: Record) -> None:
    """Print how long the import of torch takes with the packages' bytecode, and without; Python's own stays."""
    with tempfile.TemporaryDirectory() as scratch:
        whole, bare = Path(scratch, "whole"), Path(scratch, "bare")
        run("here", store, {"PYTHONPYCACHEPREFIX": str(whole), "PYTHONDONTWRITEBYTECODE": ""})  # empty: not set
        shutil.copytree(whole, bare)
        shutil.rmtree(f"{bare}{sysconfig.get_path('purelib')}")
        found: dict[str, list[float]] = {"kept": [], "none": []}
        for _ in range(ROUNDS):
            for cache, seconds in zip((whole, bare), found.values(), strict=True):
                given = {"PYTHONPYCACHEPREFIX": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
                seconds.append(run("here", store, given)["import"])
    record.head("bytecode", "import of torch")
    for name, seconds in found.items():
        record.row(name, samples(seconds, ".2f", " s"))


def main() -> None:
    """Run the processes and print the tables."""
    store = mnist().path
    record = start("startup", "python -m bench.startup", "the start of Python")
    optimizers(store, record)
    bytecode(store, record)
    record.write()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(once(sys.argv[1], sys.argv[2])))
    else:
        main()
