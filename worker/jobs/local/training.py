"""Jobs without Redis: the same stages for `preflight train`, `calibrate` and `upload`."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from calibration.choose import PlanChoice
from preflight.container.resources import Resources
from preflight.contract.spec import TrainSpec
from preflight.errors import ArtifactError, InvalidConfig
from preflight.wire import JOB_TYPE, TrainJob, TrainResult, is_job_id, parse_job
from training.artifacts.model_dir import read_manifest
from training.data.dataset_info import DatasetInfo
from training.process.fork_server.client import ForkServer
from training.system.requirements import require_training_packages
from worker.config.settings import Settings
from worker.events.log_sink import LogSink, Sink
from worker.jobs.context import JobContext
from worker.jobs.fork_server import started_extras_server
from worker.jobs.hooks import Feature
from worker.jobs.outcome import Failed, Finished
from worker.jobs.pipeline import run_pipeline
from worker.jobs.stages.dataset import pin_dataset, prepare_dataset
from worker.jobs.stages.extras import add_extras
from worker.jobs.stages.planning import detect_resources, select_plan
from worker.state.paths import next_attempt, open_paths


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A plan, and the spec and resources for which it was chosen."""

    choice: PlanChoice
    spec: TrainSpec
    resources: Resources


def train_local(
    job: TrainJob, settings: Settings, on_result: Callable[[TrainResult], None], features: Sequence[Feature] = (),
    server: ForkServer | None = None, sink: Sink | None = None,
) -> TrainResult:  # fmt: skip
    """Train here, with `features`; events go to `sink`, or, where there is none, to the log.

    `server` forks the job's children; None: they are fresh interpreters.
    `on_result` is called once the model is published; the result that is returned has its report, too.

    Raises:
        PreflightError: the job failed.
    """
    for feature in features:
        feature.require(settings)
    with (
        started_extras_server(settings, features) as extras_server,
        local_context(job, settings, server, sink) as context,
    ):
        context.features, context.extras_server = features, extras_server
        more = [each for one in features for each in one.sinks(settings, job, context.job_id, context.attempt)]
        context.sinks = (*context.sinks, *more)
        try:
            outcome = run_pipeline(context, job)
        except KeyboardInterrupt:
            message = f"the checkpoint is kept; resume with the same command and --job-id {context.job_id}"
            context.emit("job_interrupted", {"message": message})
            raise
        if isinstance(outcome, Failed):
            raise outcome.error
        on_result(outcome.result)
        if isinstance(outcome, Finished) and outcome.extras is not None:
            return add_extras(context, outcome.extras).result
        return outcome.result


def upload_local(name: str, settings: Settings, features: Sequence[Feature]) -> list[str]:
    """Upload a finished model, named by its job or directory, to every destination of `features`; return their URLs.

    Raises:
        InvalidConfig: no destination is configured.
        ArtifactError: there is no whole model, or an upload failed.
    """
    directory = settings.artifact_dir / name if is_job_id(name) else Path(name).absolute()
    job_id = (read_manifest(directory) or {}).get("job_id")
    if not isinstance(job_id, str) or not is_job_id(job_id):
        raise ArtifactError(f"{directory} holds no whole model; name a finished job, or the directory of its model")
    attempts = settings.state_dir / "jobs" / job_id
    urls = [url for feature in features for url in feature.upload(settings, job_id, directory, attempts)]
    if not urls:
        raise InvalidConfig("neither PREFLIGHT_ARTIFACT_URL nor PREFLIGHT_MLFLOW_URI is set; set where to upload to")
    return urls


def calibrate_local(
    job: TrainJob, settings: Settings, server: ForkServer | None, sink: Sink | None = None
) -> Calibrated:
    """Choose the plan for a job without training it; `server` and `sink` as for `train_local`."""
    with local_context(job, settings, server, sink) as context:
        job = pin_dataset(context, job)
        spec = job.spec()
        resources = detect_resources(context)
        choice = select_plan(context, job, spec, resources, prepare_dataset(context, job), only=True)
        return Calibrated(choice=choice, spec=spec, resources=resources)


def dataset_local(name: str, settings: Settings) -> DatasetInfo:
    """Return a prepared data set, downloaded where necessary; raises `DatasetError`."""
    job = parse_job(
        {"type": JOB_TYPE, "dataset": name},
        require_dataset=settings.require_dataset,
    )
    with local_context(job, settings) as context:
        return prepare_dataset(context, job)


@contextmanager
def local_context(
    job: TrainJob, settings: Settings, server: ForkServer | None = None, sink: Sink | None = None
) -> Iterator[JobContext]:
    """Yield the context of a job without Redis; its children are forks of `server` where there is one."""
    require_training_packages()
    settings = settings.model_copy(update={"processes": 1})  # it has no share, only the container
    job_id = job.job_id or time.strftime("local-%Y%m%d-%H%M%S-") + f"{os.getpid()}"
    attempt = next_attempt(settings, job_id)
    paths = open_paths(settings, job_id, attempt)
    with closing(paths):
        yield JobContext(
            settings=settings,
            worker=f"{socket.gethostname()}.{os.getpid()}",
            job_id=job_id,
            attempt=attempt,
            sinks=(sink or LogSink(job_id, attempt),),
            paths=paths,
            server=server,
        )
        paths.clear()  # not after a failure or interruption: the same job id resumes from the checkpoint
