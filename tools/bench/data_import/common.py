"""Helpers of all parts: real MNIST, the command line, and two sides that take turns."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.bench.pieces import Row
from tools.bench.record import judged, samples
from training.data.builtin.catalog import MNIST
from training.data.datasets import Samples
from worker.config.settings import load

ROUNDS: Final = 5
COMMAND: Final = (sys.executable, "-P", "-m", "worker.cli")


def mnist() -> Samples:
    """Return real MNIST, from PREFLIGHT_DATA_DIR."""
    return MNIST.load(load().data_dir, download=False)


@contextmanager
def work_directory() -> Iterator[Path]:
    """Make a directory that is removed with the part."""
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as directory:
        yield Path(directory)


def turns(figure: str, ours: Callable[[], float], theirs: Callable[[], float], least: float, beside: str) -> Row:
    """Let both sides take turns; return the row of their seconds, and whether we reach `least` of the other's rate."""
    pairs = [(ours(), theirs()) for _ in range(ROUNDS)]
    mine, others = zip(*pairs, strict=True)
    ratios = [other / own for own, other in pairs]
    return (
        figure, samples(mine, ".2f", " s"), f"{samples(others, '.2f', ' s')} {beside}",
        f"{samples(ratios, '.2f')} of the rate beside it, at least {least:g}",
        judged(statistics.median(ratios) >= least),
    )  # fmt: skip


def places(root: Path) -> dict[str, str]:
    """Return the environment of commands that keep everything below `root`, and find MNIST there."""
    data = root / "data"
    if not data.exists():
        data.mkdir()
        for path in load().data_dir.iterdir():
            if path.is_file():
                (data / path.name).symlink_to(path)
    own = {f"PREFLIGHT_{name.upper()}_DIR": str(root / name) for name in ("data", "cache", "state", "artifact")}
    return {**os.environ, **own, "PREFLIGHT_REPORT": "off"}


def run(words: Sequence[str], environment: Mapping[str, str], enter: Sequence[str] = ()) -> tuple[float, str]:
    """Run `preflight` with `words`, in a container behind `enter`; return its seconds and its output."""
    began = time.perf_counter()
    done = subprocess.run(
        [*enter, *COMMAND, *words], env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"preflight {' '.join(words)}: {done.stderr[-2000:]}")
    return time.perf_counter() - began, done.stdout


def train(dataset: str, steps: int, environment: Mapping[str, str], enter: Sequence[str] = ()) -> float:
    """Return the seconds of a training of a number of steps, without its start."""
    words = ("train", "--dataset", dataset, "--model", "cnn", "--epochs", "1", "--no-calibrate", "--json", "--set",
             "validation_samples=0", "--set", "batch_size=64", "--set", f"epoch_samples={64 * steps}")  # fmt: skip
    _, printed = run(words, environment, enter)
    seconds: float = json.loads(printed)["train_s"]
    return seconds
