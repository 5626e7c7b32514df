"""A job without Redis: the same stages, children and artifact, for `preflight train` and `preflight calibrate`."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from calibration.choose import Choice
from training.installed import require_training_packages
from training.resources import Resources
from training.spec import TrainSpec
from worker.jobs import run_job
from worker.places import next_attempt, places
from worker.run import Run
from worker.settings import Settings
from worker.sinks import LogSink
from worker.wire import JOB_TYPE, TrainJob, TrainResult, parse_job


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A choice, and what it was made for."""

    choice: Choice
    spec: TrainSpec
    resources: Resources


def train_here(job: TrainJob, settings: Settings) -> TrainResult:
    """Train in this terminal; events go to the log. Raises `PreflightError` when the job fails."""
    with _run(job, settings) as run:
        try:
            return run_job(run, job)
        except KeyboardInterrupt:
            go_on = f"the checkpoint is kept; go on with the same command and --job-id {run.job_id}"
            run.say("job_interrupted", {"message": go_on})
            raise


def calibrate_here(job: TrainJob, settings: Settings) -> Calibrated:
    """Choose the plan for a job without training it."""
    with _run(job, settings) as run:
        spec = job.spec()
        resources = run.resources()
        choice = run.plan(job, spec, resources, run.dataset(job))
        return Calibrated(choice=choice, spec=spec, resources=resources)


def dataset_here(name: str, settings: Settings) -> None:
    """Prepare a data set, downloading it where it is not there; raises `DatasetError`."""
    job = parse_job({"type": JOB_TYPE, "dataset": name})
    with _run(job, settings) as run:
        run.dataset(job)


@contextmanager
def _run(job: TrainJob, settings: Settings) -> Iterator[Run]:
    require_training_packages()
    job_id = job.job_id or time.strftime("local-%Y%m%d-%H%M%S-") + f"{os.getpid()}"
    attempt = next_attempt(settings, job_id)
    where = places(settings, job_id, attempt)
    yield Run(
        settings=settings,
        worker=f"{socket.gethostname()}.{os.getpid()}",
        job_id=job_id,
        attempt=attempt,
        sinks=(LogSink(job_id, attempt),),
        places=where,
    )
    where.clear()  # not after a failure or an interruption: the same job id goes on from the checkpoint
