"""Whole trainings with calibration: `resnet18` beside 0.13.0, and a bad plan of the user's own beside a good one.

Every training is a process of its own, `preflight train`, and begins with a cache that holds the data set alone.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.calibration import few_digits
from bench.record import Record, judged, samples, start
from bench.versions import NO_REDIS, checked_out, environment, version_of

REVISION: Final = "7bba196"
"""Of 0.13.0."""
SHARE: Final = 0.65
"""Of the wall time of 0.13.0 that `resnet18` may take."""
LONGER_S: Final = 5.0
"""Seconds that a bad plan of the user's own may add."""
ROUNDS: Final = 3
ENTRY_POINT: Final = f"""
[preflight.datasets]
few-digits = {few_digits.__name__.rpartition(".")[2]}:FEW_DIGITS
"""
RESNET: Final = ("--dataset", "few-digits", "--model", "resnet18", "--epochs", "1")
CNN: Final = ("--model", "cnn", "--epochs", "1")
BAD: Final = ("--set", "plan.threads=99")


@dataclass(frozen=True, slots=True)
class Side:
    """A version, and where it finds its data sets."""

    tree: Path
    """Its checkout."""
    site: Path
    """Where its Python finds `few-digits`."""

    @property
    def prepared(self) -> Path:
        """Directory whose cache holds prepared data sets, and nothing else that a training would find."""
        return self.tree / "bench-prepared"

    def prepare(self) -> None:
        """Prepare both data sets."""
        for dataset in ("few-digits", "mnist"):
            quick = "--no-calibrate", "--dataset", dataset, "--model", "cnn", "--epochs", "1"
            self._train(*quick, into=self.prepared)

    def seconds(self, *arguments: str) -> float:
        """Return the wall seconds of a training with calibration, from a cache without a plan."""
        with tempfile.TemporaryDirectory(prefix="bench-former-") as name:
            directory = Path(name)
            shutil.copytree(self.prepared / "CACHE", directory / "CACHE", copy_function=shutil.copy2)
            began = time.perf_counter()
            self._train("--calibrate", *arguments, into=directory)
            return time.perf_counter() - began

    def _train(self, *arguments: str, into: Path) -> None:
        own = environment(self.tree, NO_REDIS, into)
        own |= {"PYTHONPATH": os.pathsep.join([own["PYTHONPATH"], str(self.site)])}
        command = [sys.executable, "-P", "-m", "worker.cli", "train", "--json", *arguments]
        done = subprocess.run(command, cwd=self.tree, env=own, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} of {version_of(self.tree)} failed: {done.stderr[-500:]}")


def main() -> None:
    """Print and write both tables."""
    record = start("calibration-former", "python -m bench.calibration former")
    with checked_out(REVISION) as old, checked_out("HEAD") as new, tempfile.TemporaryDirectory() as site:
        _register(Path(site))
        was, now = (Side(tree, Path(site)) for tree in (old, new))
        record.version = version_of(new)
        now.prepare()
        _own_plans(record, now)
        was.prepare()
        _versions(record, was, now)
    record.write()


def _register(site: Path) -> None:
    """Let a Python with `site` on its path find the data set."""
    shutil.copy2(few_digits.__file__, site)
    package = site / "few_digits-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: few-digits\nVersion: 1\n")
    (package / "entry_points.txt").write_text(ENTRY_POINT)


def _own_plans(record: Record, side: Side) -> None:
    """Measure an epoch of `cnn` on MNIST, by the container's default and by a bad plan in turns."""
    good, bad = _in_turns(lambda: side.seconds(*CNN), lambda: side.seconds(*CNN, *BAD))
    longer = [each - other for other, each in zip(good, bad, strict=True)]
    record.head("whole `preflight train`, seconds", "as by default", "`plan.threads=99`", "longer", "at most", "")
    record.row("an epoch of `cnn` on MNIST", samples(good, ".1f"), samples(bad, ".1f"), samples(longer, "+.1f"),
        f"{LONGER_S:g}", judged(statistics.median(longer) <= LONGER_S))  # fmt: skip


def _versions(record: Record, was: Side, now: Side) -> None:
    """Measure an epoch of `resnet18` on 6,400 samples by both versions in turns."""
    before, after = _in_turns(lambda: was.seconds(*RESNET), lambda: now.seconds(*RESNET))
    shares = [new / old for old, new in zip(before, after, strict=True)]
    record.head("whole `preflight train`, seconds", version_of(was.tree), version_of(now.tree), "share", "at most", "")
    record.row(f"an epoch of `resnet18` on {few_digits.TRAIN:,} samples", samples(before, ".1f"),
        samples(after, ".1f"), samples(shares, ".2f"), f"{SHARE:g}",
        judged(statistics.median(shares) <= SHARE))  # fmt: skip


def _in_turns(first: Callable[[], float], second: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Measure both `ROUNDS` times, A B and B A in turns."""
    figures: tuple[list[float], list[float]] = [], []
    for number in range(ROUNDS):
        pair = [(first, figures[0]), (second, figures[1])]
        for measure, into in pair if number % 2 == 0 else reversed(pair):
            into.append(measure())
    return figures
