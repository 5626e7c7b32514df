"""Two versions side by side, and a round of measurements."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.bench.job.service import running_worker
from tools.bench.job.timeline import MeasuredJob
from tools.bench.versions import NO_REDIS, environment, version_of

RECIPE: Final = "fast"
WARM_JOBS: Final = 3
"""Warm jobs of each version in a round, and as many commands."""
PAUSE_SECONDS: Final = 3.0
"""Seconds before a job, in which the work ends that follows the result of the other side: a report, a new standby."""
WITHOUT_IDLE: Final = {"PREFLIGHT_IDLE_CALIBRATION": "off"}
"""An idle worker of an earlier version calibrates, next to the jobs of the other side; later ones never do."""
COMMAND: Final = ("-P", "-m", "worker.cli", "train", "--recipe", RECIPE, "--json")


@dataclass(frozen=True, slots=True)
class Side:
    """One version and its measurements, in seconds."""

    tree: Path
    """Its checkout."""
    cold: list[MeasuredJob] = field(default_factory=list)
    warm: list[MeasuredJob] = field(default_factory=list)
    calibrations: list[float] = field(default_factory=list)
    cpu_calibrations: list[float] = field(default_factory=list)
    """Calibrations with torch's CPU build."""
    commands: list[float] = field(default_factory=list)
    """Wall time of `preflight train` without the training."""
    cpu_commands: list[float] = field(default_factory=list)
    """The same wall time with torch's CPU build."""

    @property
    def name(self) -> str:
        """Its version."""
        return version_of(self.tree)

    def run_command(self, python: Path = Path(sys.executable)) -> float:
        """Return the seconds of a whole `preflight train` that are not `train_seconds`."""
        began = time.perf_counter()
        done = subprocess.run(
            [python, *COMMAND],
            cwd=self.tree,
            env=environment(self.tree, NO_REDIS, self.tree / "bench-out"),
            capture_output=True,
            text=True,
        )
        wall = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(f"`preflight train` of {self.name} failed: {done.stderr[-500:]}")
        found = json.loads(done.stdout)
        return wall - float(found["train_s"] if "train_s" in found else found["train_seconds"])  # its name until 0.27


def measure_round(turn: Sequence[Side], cpu_python: Path | None) -> None:
    """Measure each side once, its warm jobs several times; with an interpreter that has torch's CPU build, too."""
    with ExitStack() as stack:
        services = {}
        for side in turn:
            services[side.tree] = stack.enter_context(running_worker(side.tree, Path(sys.executable), **WITHOUT_IDLE))
            time.sleep(PAUSE_SECONDS)
            side.cold.append(services[side.tree].run(recipe=RECIPE))
        for _ in range(WARM_JOBS):
            for side in turn:
                time.sleep(PAUSE_SECONDS)
                side.warm.append(services[side.tree].run(recipe=RECIPE))
        for side in turn:
            side.calibrations.append(services[side.tree].calibrate("cnn"))
    for _ in range(WARM_JOBS):
        for side in turn:
            side.commands.append(side.run_command())
            if cpu_python is not None:
                side.cpu_commands.append(side.run_command(cpu_python))
    if cpu_python is not None:
        for side in turn:
            with running_worker(side.tree, cpu_python) as service:
                side.cpu_calibrations.append(service.calibrate("cnn"))
