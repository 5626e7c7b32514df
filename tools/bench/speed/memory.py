"""Peak memory of training in real cgroups, and whether it learns there.

    python -m tools.bench.speed memory

Each row is a whole `preflight train` of one epoch, calibration included, in a memory cgroup of its own. The peak is of
anonymous memory, of all its processes together, looked at every 20 ms: what maps files the kernel can take back.
"""

import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

from preflight.container.resources import status_sizes
from preflight.wire import TrainResult
from tools.bench.calibration.common import PREFLIGHT, mnist
from tools.bench.record import judged, start
from tools.bench.speed.common import BenchOptions
from tools.faults.means import NotHere, memory_limit
from worker.config.settings import load, service_environment

CASES: Final = (("cnn", 512), ("cnn", 1024), ("cnn", 2048), ("resnet18", 1024), ("resnet18", 2048))
"""Model and MiB."""
LEARNED: Final = 0.95
"""Test accuracy after the one whole epoch, from which on a model counts as trained."""
LOOK_EVERY: Final = 0.02


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training left."""

    peak_bytes: int
    result: TrainResult | None
    last_words: str


def main(asked: BenchOptions) -> None:  # noqa: ARG001 - every part is called alike
    """Measure and print."""
    record = start("memory", "python -m tools.bench.speed memory", "pages of files, which the kernel can take back")
    mnist()
    record.head("model", "limit", "test accuracy", "peak of anonymous memory", "micro-batch", "samples/s", "bound", "")
    for model, size in CASES:
        try:
            with memory_limit(size << 20) as enter:
                trained = _train(enter, model)
        except NotHere as error:
            record.note(f"not here: {error}")
            break
        result, peak = trained.result, mebibytes(trained.peak_bytes)
        if result is None:
            record.row(
                model,
                f"{size} MiB",
                f"failed: {trained.last_words}",
                peak,
                "",
                "",
                f"{LEARNED:.0%}",
                judged(reached=False),
            )
        else:
            pieces = str(result.plan.micro_batch) if result.plan else ""
            record.row(model, f"{size} MiB", f"{result.test_accuracy:.2%}", peak, pieces,
                       f"{result.samples_per_s:,.0f}", f"{LEARNED:.0%}",
                       judged((result.test_accuracy or 0) >= LEARNED))  # fmt: skip
    record.write()


def mebibytes(size: int) -> str:
    """Return a size in words."""
    return f"{size / 2**20:,.0f} MiB"


def _train(enter: Sequence[str], model: str) -> Trained:
    """Train in a cgroup."""
    options = ["--model", model, "--json", "--force-calibration"]
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as name, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*enter, PREFLIGHT, "train", *options],
            env={**service_environment(load()), "PREFLIGHT_ARTIFACT_DIR": name, "PREFLIGHT_STATE_DIR": name},
            stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        peak = 0
        while process.poll() is None:
            peak = max(peak, _anonymous(process.pid))
            time.sleep(LOOK_EVERY)
        output = process.stdout.read() if process.stdout else b""
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
    return Trained(peak, TrainResult.model_validate_json(output) if process.returncode == 0 else None, last)


def _anonymous(pid: int) -> int:
    """Return the anonymous bytes of a process and all its descendants."""
    total = 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return 0
    for process in family:
        with suppress(OSError):  # it has ended
            total += status_sizes(process.pid).get("RssAnon", 0)  # a zombie has none
    return total
