"""The events of docs/reference/wire.md about the training of any command, as JSON lines.

Fields that are not known of it (loss, epochs) are left out, so that `progress` is not a whole event.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from preflight.container.resources import detect
from preflight.launch.findings import Process, fields, integer, number, read_findings, settings_of, text
from preflight.tuner.journal import Record


class EventLog:
    """Writes the events of a command's processes, each once, as they are found in its folder."""

    def __init__(self, folder: Path, out: TextIO) -> None:
        """Begin with the limits of the container."""
        self._folder = folder
        self._out = out
        self._job = f"run-{os.getpid()}"
        self._sequence = 0
        self._done: dict[int, int] = {}
        """Process -> number of its records that were written."""
        self._steps: dict[int, int] = {}
        found = detect()
        self._write(time.time(), {
            "type": "resource_limits", "cpu_cores": found.cores, "quota": found.quota,
            "memory_mib": found.memory_bytes >> 20, "source": f"{found.cores_source}, {found.memory_source}",
        })  # fmt: skip

    def write_new(self) -> None:
        """Write the events found since the last call."""
        for process in read_findings(self._folder).processes:
            done = self._done.get(process.pid, 0)
            for record in process.records[done:]:
                for event in _events(record, process):
                    self._write(number(record.get("at")) or time.time(), event)
            self._done[process.pid] = len(process.records)
            if process.summary and process.steps != self._steps.get(process.pid):
                self._steps[process.pid] = process.steps
                self._write(number(process.summary.get("at")) or time.time(), _progress(process))

    def _write(self, at: float, event: Record) -> None:
        self._sequence += 1
        whole = {"v": 1, "seq": self._sequence, "job_id": self._job, "attempt": 1, "ts": at, **event}
        with suppress(OSError):  # a reader that has gone ends no training
            self._out.write(json.dumps({name: value for name, value in whole.items() if value is not None}) + "\n")
            self._out.flush()


def _events(record: Record, process: Process) -> Iterator[Record]:
    """Yield the event for a record."""
    gain = fields(record.get("ratio") or record.get("gain"))
    speed = {"ratio": gain.get("ratio")}
    match record.get("what"):
        case "trial":
            verdict = text(record.get("verdict"))
            yield {
                "type": "calibration_trial", "knob": text(record.get("knob")), **_plan(record, process),
                "step_s": record.get("step_s"), "steps": record.get("steps"), **speed, "low": gain.get("low"),
                "high": gain.get("high"), "disturbed": record.get("disturbed"), "won": verdict == "won",
                "verdict": verdict, "note": text(record.get("note")) or _malloc(record),
            }  # fmt: skip
        case "winner":
            started = number(process.start.get("at")) or 0.0
            yield {
                "type": "calibration_winner", "source": "measured", "why": text(record.get("why")),
                **_plan(record, process), **speed, "ratio_low": gain.get("low"), "ratio_high": gain.get("high"),
                "calibration_s": (number(record.get("at")) or started) - started, "import_s": 0.0,
                "trials": len(process.named("trial")), "reasons": _malloc(record),
            }  # fmt: skip
        case "adapted":
            yield {"type": "plan_adapted", "field": "threads", **{
                name: record.get(name) for name in ("before", "after", "reason")
            }}  # fmt: skip
        case "checked":
            predicted = number(record.get("predicted_s")) or 0.0
            first = process.named("prediction")[0]
            measured = number(record.get("took_s")) or 0.0
            steps = max(1, integer(record.get("steps")) or 1)
            yield {
                "type": "prediction_checked", "epoch": 1, "steps": steps, "whole": False, "predicted_s": predicted,
                "low_s": first.get("low_s"), "high_s": first.get("high_s"), "measured_s": measured,
                "predicted_batch_s": first.get("step_s"), "measured_batch_s": measured / steps,
                "deviation": measured / predicted - 1 if predicted else 0.0,
            }  # fmt: skip
        case _:
            pass


def _progress(process: Process) -> Record:
    summary, total = process.summary, integer(process.start.get("total_steps"))
    seconds = number(summary.get("seconds")) or 0.0
    rate = process.steps / seconds if seconds else 0.0
    batch = integer(fields(process.start.get("workload")).get("batch"))
    return {
        "type": "progress", "step": process.steps, "steps": total, "train_steps": process.steps,
        "samples_per_s": rate * batch if batch else None,
        "eta_s": max(0, total - process.steps) / rate if total and rate else None,
        "used_memory_mib": (integer(summary.get("memory_peak")) or 0) >> 20,
    }  # fmt: skip


def _plan(record: Record, process: Process) -> Record:
    settings = fields(record.get("settings"))
    return {
        "threads": settings.get("threads"), "interop": process.start.get("interop"),
        "micro_batch": integer(fields(process.start.get("workload")).get("batch")) or 1, "precision": "float32",
        "memory_format": "contiguous", "allocator": "default",
        "affinity": "pinned" if settings.get("pinned") else "free",
    }  # fmt: skip


def _malloc(record: Record) -> str:
    settings = settings_of(record.get("settings"))
    return settings.describe_malloc() if settings else ""
