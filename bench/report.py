"""Cost of a report: seconds of its process, for the recipe `fast` on MNIST's 10,000 test samples, and its bytes.

Prints a Markdown table: median and range. The first process is left out: matplotlib looks through all fonts in it.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from bench.calibration.common import mnist
from bench.record import judged, samples, start
from bench.speed.common import calibrated
from calibration.choose import PlanChoice
from training.config.recipes import RECIPES
from training.loop import child as training_child
from training.loop.child import TrainingRequest
from training.process.child import Child
from training.process.runner import iter_records
from worker.report import child, request
from worker.report.request import REPORT, ReportRequest

SPEC: Final = RECIPES["fast"]
ROUNDS: Final = 7
BOUND: Final = 3.0
"""Seconds."""


def main() -> None:
    """Calibrate, train, and make the report again and again."""
    choice = calibrated(SPEC)
    with tempfile.TemporaryDirectory(prefix="bench-report-") as name:
        directory = Path(name)
        training = TrainingRequest(
            spec=SPEC, plan=choice.plan, store=mnist().path, artifact=directory / "model", facts={"job_id": "bench"}
        )
        _run(training_child.MODULE, training_child.REQUEST.dump_json(training), directory)
        body = request.REQUEST.dump_json(_request(choice, training))
        wall, inside = [], []
        for _ in range(ROUNDS + 1):
            began = time.perf_counter()
            done = _run(child.MODULE, body, directory)
            wall.append(time.perf_counter() - began)
            inside.append(float(str(done["seconds"])))
        size = (training.artifact / REPORT).stat().st_size
    record = start("report", "python -m bench.report", "the first process, in which matplotlib looks through all fonts")
    record.head("the report of one epoch of MNIST", "its process", "of it drawing and writing", "bound", "", "KiB")
    record.row("", samples(wall[1:], ".2f", " s"), samples(inside[1:], ".2f", " s"), f"{BOUND:g} s",
        judged(sorted(wall[1:])[ROUNDS // 2] <= BOUND), f"{size / 1024:,.0f}")  # fmt: skip
    record.write()


def _request(choice: PlanChoice, training: TrainingRequest) -> ReportRequest:
    return ReportRequest(
        job_id="bench", artifact=training.artifact, store=training.store, why=choice.why, facts={},
        finding=choice.finding, prediction=choice.prediction, calibration_s=choice.calibration_seconds,
        training_s=10.0, losses=tuple((number / 100, 1 / number) for number in range(1, 100)),
    )  # fmt: skip


def _run(module: str, body: bytes, directory: Path) -> dict[str, JsonValue]:
    environment = {**os.environ, "MPLCONFIGDIR": str(directory / "matplotlib")}
    with Child(module, body, directory, environment) as child:
        *_, done = iter_records(child, lambda: None)
    return done.payload


if __name__ == "__main__":
    main()
