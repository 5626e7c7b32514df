"""A job without Redis: the same stages, children and artifact, for `preflight train` and `preflight calibrate`."""

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from calibration.choose import Choice
from training.artifacts.publish import read_manifest
from training.config.spec import TrainSpec
from training.data.dataset_store import StoreInfo
from training.errors import ArtifactError, InvalidConfig
from training.system.requirements import require_training_packages
from training.system.resources import Resources
from worker.config.settings import Settings
from worker.events.redis_sink import LogSink
from worker.exporters.base import ExportRequest, exports, see_that_usable
from worker.exporters.tensorboard import drawing
from worker.jobs.heartbeat import run_job
from worker.jobs.paths import next_attempt, places
from worker.jobs.pipeline import Run
from worker.wire import JOB_TYPE, TrainJob, TrainResult, is_job_id, parse_job


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A choice, and what it was made for."""

    choice: Choice
    spec: TrainSpec
    resources: Resources


def train_here(job: TrainJob, settings: Settings) -> TrainResult:
    """Train in this terminal; events go to the log. Raises `PreflightError` when the job fails."""
    for export in exports(settings):
        see_that_usable(export)
    with _run(job, settings) as run:
        try:
            return run_job(run, job)
        except KeyboardInterrupt:
            go_on = f"the checkpoint is kept; go on with the same command and --job-id {run.job_id}"
            run.say("job_interrupted", {"message": go_on})
            raise


def upload_here(name: str, settings: Settings) -> list[str]:
    """Send a finished model, named by its job or its directory, to where `settings` say; return where it went.

    Raises:
        InvalidConfig: nothing is set.
        ArtifactError: there is no whole model, or a place did not take it.
    """
    found = exports(settings)
    if not found:
        raise InvalidConfig("neither PREFLIGHT_ARTIFACT_URL nor PREFLIGHT_MLFLOW_URI is set; set where to upload to")
    directory = settings.artifact_dir / name if is_job_id(name) else Path(name).absolute()
    job_id = (read_manifest(directory) or {}).get("job_id")
    if not isinstance(job_id, str) or not is_job_id(job_id):
        raise ArtifactError(f"{directory} holds no whole model; name a finished job, or the directory of its model")
    request = ExportRequest(job_id=job_id, artifact=directory, job=settings.state_dir / "jobs" / job_id)
    with tempfile.TemporaryDirectory(prefix="preflight-") as work:
        for export in found:
            export.send(request, Path(work), lambda: None)
    return [export.where for export in found]


def calibrate_here(job: TrainJob, settings: Settings) -> Calibrated:
    """Choose the plan for a job without training it."""
    with _run(job, settings) as run:
        spec = job.spec()
        resources = run.resources()
        choice = run.plan(job, spec, resources, run.dataset(job))
        return Calibrated(choice=choice, spec=spec, resources=resources)


def dataset_here(name: str, settings: Settings) -> StoreInfo:
    """Return a prepared data set, downloading it where it is not there; raises `DatasetError`."""
    job = parse_job({"type": JOB_TYPE, "dataset": name})
    with _run(job, settings) as run:
        return run.dataset(job)


@contextmanager
def _run(job: TrainJob, settings: Settings) -> Iterator[Run]:
    require_training_packages()
    job_id = job.job_id or time.strftime("local-%Y%m%d-%H%M%S-") + f"{os.getpid()}"
    attempt = next_attempt(settings, job_id)
    where = places(settings, job_id, attempt)
    with closing(where):
        yield Run(
            settings=settings,
            worker=f"{socket.gethostname()}.{os.getpid()}",
            job_id=job_id,
            attempt=attempt,
            sinks=(LogSink(job_id, attempt), *drawing(settings, job, job_id, attempt)),
            places=where,
        )
        where.clear()  # not after a failure or an interruption: the same job id goes on from the checkpoint
