"""A job without Redis: the same stages, children and artifact, for `preflight train` and `preflight calibrate`."""

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calibration.choose import Choice
from training.installed import require_training_packages
from worker.jobs import run_job
from worker.run import Run
from worker.settings import Settings
from worker.sinks import LogSink, Sink
from worker.wire import JOB_TYPE, AnyEvent, CalibrationTrial, TrainJob, TrainResult, parse_job


class Trials:
    """Keeps the trials of a calibration."""

    def __init__(self) -> None:
        self.trials: list[CalibrationTrial] = []

    def emit(self, event: AnyEvent) -> None:
        """Keep the event when it is a trial."""
        if isinstance(event, CalibrationTrial):
            self.trials.append(event)


def train_here(job: TrainJob, settings: Settings) -> TrainResult:
    """Train in this terminal; events go to the log. Raises `PreflightError` when the job fails."""
    with _run(job, settings) as run:
        return run_job(run, job)


def calibrate_here(job: TrainJob, settings: Settings) -> tuple[Choice, list[CalibrationTrial]]:
    """Choose the plan for a job without training it; returns it with what was measured."""
    kept = Trials()
    with _run(job, settings, kept) as run:
        spec = job.spec()
        resources = run.resources()
        return run.plan(job, spec, resources, run.dataset(spec.dataset)), kept.trials


def dataset_here(name: str, settings: Settings) -> None:
    """Prepare a data set, downloading it where it is not there; raises `DatasetError`."""
    job = parse_job({"type": JOB_TYPE, "dataset": name, "model": "cnn"})
    with _run(job, settings) as run:
        run.dataset(name)


@contextmanager
def _run(job: TrainJob, settings: Settings, *sinks: Sink) -> Iterator[Run]:
    require_training_packages()
    job_id = job.job_id or time.strftime("local-%Y%m%d-%H%M%S-") + f"{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="preflight-") as directory:
        yield Run(
            settings=settings,
            worker=f"{socket.gethostname()}.{os.getpid()}",
            job_id=job_id,
            attempt=1,
            sinks=(LogSink(job_id, 1), *sinks),
            directory=Path(directory),
        )
