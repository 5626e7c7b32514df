"""Whether a training takes what its calibration predicted.

    python -m bench.calibration prediction [--runs N]

Each run is a whole `preflight train` of `cnn` on MNIST with a calibration of its own and a seed of its own. A run is a
quiet one when nobody else disturbed it, by two witnesses. One is the kernel's counters, looked at before it and after
it: its processes are collected by then, so that their work is counted as our own; how long they waited is not, as they
are gone, and pressure on the processors stands in for it. The other is the training itself, which looks at the counters
in its own process and says in `prediction_checked` where it was disturbed.
"""

import json
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from bench.calibration.common import PREFLIGHT, BenchOptions, mnist
from bench.record import Record, judged, samples, start
from training.system.system_counters import SystemCounters
from worker.config.settings import load, service_environment

EPOCHS: Final = 2
CHECKED: Final = "prediction_checked"
"""The event in which a training holds the prediction against what it measures."""
MEDIAN_BOUND: Final = 0.05
WORST_BOUND: Final = 0.10


@dataclass(frozen=True, slots=True)
class Run:
    """What one training was predicted to take, and took."""

    predicted_s: float
    measured_s: float
    disturbed: str
    """What else was at work; empty where nothing was."""

    @property
    def error(self) -> float:
        """Above 0: it was quicker than predicted."""
        return self.predicted_s / self.measured_s - 1


def main(asked: BenchOptions) -> bool:
    """Measure and print."""
    record = start(
        "calibration-prediction", "python -m bench.calibration prediction", "process starts, imports and calibration"
    )
    mnist()
    machine = SystemCounters()
    record.head("run", "predicted, s an epoch", "measured, s an epoch", "error", "the machine")
    runs = [one(seed, machine, record) for seed in range(asked.runs)]
    errors = [abs(run.error) for run in runs]
    quiet = [abs(run.error) for run in runs if not run.disturbed]
    record.head("prediction against measurement", "figure", "bound", "")
    record.row(f"error of {len(runs)} runs", samples([run.error for run in runs], "+.1%"), "", "")
    record.row("median of their absolute errors", f"{statistics.median(errors):.1%}", f"{MEDIAN_BOUND:.0%}",
        judged(statistics.median(errors) <= MEDIAN_BOUND))  # fmt: skip
    worst = max(quiet, default=None)
    record.row(f"worst of {len(quiet)} quiet ones", "there was none" if worst is None else f"{worst:.1%}",
        f"{WORST_BOUND:.0%}", "not measured" if worst is None else judged(worst <= WORST_BOUND))  # fmt: skip
    record.write()
    return True


def one(seed: int, machine: SystemCounters, record: Record) -> Run:
    """Train once and print a row."""
    before = machine.sample()
    result, seen = train(seed)
    noise = replace(machine.sample().since(before), waited=None)
    disturbed = "; ".join([*([noise.describe()] if noise.noisy else []), *seen])
    run = Run(result["predicted_epoch_s"], result["measured_epoch_s"], disturbed)
    record.row(
        str(seed), f"{run.predicted_s:.2f}", f"{run.measured_s:.2f}", f"{run.error:+.1%}", run.disturbed or "quiet"
    )
    return run


def train(seed: int) -> tuple[dict[str, float], Sequence[str]]:
    """Return the figures of one training, and what it saw of others; its model is thrown away."""
    with tempfile.TemporaryDirectory() as artifacts:
        done = subprocess.run(
            [PREFLIGHT, "train", "--dataset", "mnist", "--model", "cnn", "--epochs", str(EPOCHS), "--seed", str(seed),
             "--force-calibration", "--json"],
            env={**service_environment(load(log_format="json", log_level="info")), "PREFLIGHT_ARTIFACT_DIR": artifacts},
            capture_output=True, check=True,
        )  # fmt: skip
    result: dict[str, float] = json.loads(done.stdout)
    said = [json.loads(line) for line in done.stderr.splitlines() if line.startswith(b"{")]
    noisy = [event for event in said if event["event"] == CHECKED and event["cause"] == "noisy"]
    return result, [f"in the training: {event['seen']}" for event in noisy]
