"""A training in a container, as `preflight train` makes it, and the figures of its log."""

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import JsonValue, TypeAdapter

from tools.bench.calibration.common import PREFLIGHT
from tools.bench.calibration.matrix.cells import WORKLOADS, Cell
from tools.bench.calibration.matrix.findings import Training
from tools.bench.calibration.matrix.steadiness import Pulse
from tools.bench.container import Container
from tools.faults.means import memory_kills
from worker.config.settings import load, service_environment

LIMIT: Final = 900.0
"""Seconds after which a training is ended."""
JUMP: Final = 1.0
"""Seconds by which the system clock may leave the monotonic one before times of the log mean nothing."""
system_clock: Final = time.time
EVENT: Final = TypeAdapter(dict[str, JsonValue])


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Directories in which the trainings find their data sets, and leave their files."""

    directory: Path
    prepared: Path
    """A cache directory with nothing but prepared data sets."""
    python_path: str

    def environment(self, training: str) -> Mapping[str, str]:
        """Return the environment of a training of that name: its cache holds no plan, no gauge and no trial."""
        directory = self.directory / training
        shutil.rmtree(directory, ignore_errors=True)  # of the cell before
        shutil.copytree(self.prepared, directory / "cache", copy_function=shutil.copy2)
        own = {
            "PREFLIGHT_CACHE_DIR": str(directory / "cache"),
            "PREFLIGHT_ARTIFACT_DIR": str(directory / "artifacts"),
            "PREFLIGHT_STATE_DIR": str(directory / "state"),
            "PYTHONPATH": self.python_path,
        }
        return {**service_environment(load(log_format="json", log_level="debug", report="off")), **own}


def train(cell: Cell, box: Container, place: Place, *, calibrate: bool) -> Training:
    """Train one epoch while a pulse samples the machine; delete the files."""
    name = "calibrated" if calibrate else "plain"
    kills, all_kills, began, began_at = box.kills(), memory_kills(), time.monotonic(), system_clock()
    with Pulse(cell) as pulse:
        exit_code, log = _run([*box.enter, PREFLIGHT, *_arguments(cell, calibrate=calibrate)], place.environment(name))
    wall_s = time.monotonic() - began
    shutil.rmtree(place.directory / name)
    killed = box.kills() - kills
    found = read_log(log, pulse, wall_s, exit_code)
    found = replace(found, killed=killed, other_kills=memory_kills() - all_kills - killed)
    return without_times(found) if abs(system_clock() - began_at - wall_s) > JUMP else found


def _arguments(cell: Cell, *, calibrate: bool) -> Sequence[str]:
    workload = WORKLOADS[cell.workload]
    return [
        "train", "--dataset", workload.dataset, "--model", workload.model, "--epochs", "1", "--json",
        "--epoch-samples", str(cell.samples), "--set", f"validation_samples={cell.validation}",
        "--calibrate" if calibrate else "--no-calibrate",
    ]  # fmt: skip


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, Sequence[dict[str, JsonValue]]]:
    """Return exit code and log records."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _, log = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.terminate()
        _, log = process.communicate()
    return process.returncode, [EVENT.validate_json(line) for line in log.splitlines() if line.startswith(b"{")]


def without_times(found: Training) -> Training:
    """Return a training without the figures that depend on the system clock, which was set meanwhile."""
    return replace(
        found, clock_jumped=True, calibration_s=None, reference_s=None, training_reference_s=None, slower=None
    )


def read_log(log: Sequence[dict[str, JsonValue]], pulse: Pulse, wall_s: float, exit_code: int) -> Training:
    """Return the figures that the events of a training hold, and the speed of the machine meanwhile."""
    events = {str(record["event"]): record for record in log if record.get("whole", True)}
    winner, checked = events.get("calibration_winner", {}), events.get("prediction_checked", {})
    failed = events.get("job_failed", {})
    ready, chosen, begins, ended = (
        _at(events.get(name)) for name in ("dataset_ready", "calibration_winner", "training_config", "epoch_done")
    )
    measuring_s = pulse.before(chosen) if chosen else None
    training_s = pulse.between(begins, ended) if begins and ended else None
    measured = winner.get("source") not in (None, "own") or winner.get("trials")
    return Training(
        wall_s=wall_s, exit_code=exit_code,
        sentence=str(failed.get("message", log[-1].get("message", "") if exit_code and log else "")),
        plan=_plan(winner), calibration_s=(begins - ready).total_seconds() if measured and ready and begins else None,
        confidence=str(winner.get("confidence") or ""), ratio=_number(winner, "ratio"),
        predicted_s=_number(checked, "predicted_s"), low_s=_number(checked, "low_s"),
        high_s=_number(checked, "high_s"), measured_s=_number(events.get("epoch_done", {}), "took_s"),
        seen=str(checked.get("seen") or ""),
        adapted=sum(record["event"] == "plan_adapted" for record in log),
        reference_s=measuring_s, training_reference_s=training_s,
        slower=training_s / measuring_s - 1 if training_s and measuring_s else None,
    )  # fmt: skip


def _plan(winner: Mapping[str, JsonValue]) -> str:
    """Return the fields that the grid varies, and others that are not as by default."""
    if not winner:
        return ""
    fields = [plan_key(int(str(winner["threads"])), str(winner["precision"]), str(winner["memory_format"]))]
    fields += [str(winner["allocator"])] if winner["allocator"] != "default" else []
    fields += [f"{winner['loader_workers']} loader workers"] if winner["loader_workers"] else []
    fields += ["pinned"] if winner["affinity"] == "pinned" else []
    return ", ".join([*fields, f"micro-batch {winner['micro_batch']}"])


def plan_key(threads: int, precision: str, memory_format: str) -> str:
    """Return the name of a plan in the grid."""
    return f"{threads} thread{'s' if threads > 1 else ''}, {precision}, {memory_format}"


def _at(record: Mapping[str, JsonValue] | None) -> datetime | None:
    """Return the time of a log record; None: there is none."""
    return datetime.fromisoformat(str(record["ts"])) if record else None


def _number(record: Mapping[str, JsonValue], name: str) -> float | None:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) else None
