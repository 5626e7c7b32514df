"""The child that logs a finished job to MLflow: parameters, curves and the files of the model, as one run.

The curves come from the journals of the training processes: unlike the events in Redis they are there for `preflight
train` too, and every process of every attempt on this disk left its own, whatever ended it. The epochs come from the
manifest, to which checkpoints carry them from other disks as well.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue, ValidationError

from training.artifacts.publish import read_manifest
from training.errors import ArtifactError, InvalidConfig, MissingPackage
from training.loop import child as training_child
from training.process.child import file_name, run_child
from training.process.journal import JournalWriter, read_runs
from worker.config.settings import load, without_password
from worker.exporters.base import REQUEST, ExportRequest, persist, trouble
from worker.exporters.scalars import Point, points, position
from worker.jobs.paths import attempts
from worker.wire import EpochDone, Progress

if TYPE_CHECKING:
    from mlflow import MlflowClient

JOURNAL: Final = f"{file_name(training_child.MODULE)}.jsonl"
ID_TAG: Final = "preflight.job_id"
MODEL_TAG: Final = "preflight.model_sha256"
FINISHED: Final = "FINISHED"
MOST_METRICS: Final = 1_000
"""Values that MLflow takes at once."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a curve, and when it was measured."""

    point: Point
    time: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished job, as it is logged."""

    job_id: str
    artifact: Path
    model_sha256: str
    params: Mapping[str, str]
    values: list[Value]


@dataclass(slots=True)
class Journals:
    """What the training processes of a job have written down."""

    progress: list[tuple[Progress, float]] = field(default_factory=list)
    epochs: dict[int, float] = field(default_factory=dict)
    """Number of an epoch -> when it was done."""


def run(request: ExportRequest, journal: JournalWriter, should_stop: Callable[[], bool]) -> None:  # noqa: ARG001 - every child's signature
    """Log the job, and record `done`; every try that failed is a `retry`."""
    settings = load()
    client = connected(settings.mlflow_uri or "")
    if request.artifact is not None:
        job = finished(request.job_id, request.artifact, request.job)
        persist(partial(log, client, settings.mlflow_experiment, job), journal)
    journal.write("done", {}, durable=True)


def connected(uri: str) -> "MlflowClient":
    """Return a client; the server is not asked for anything yet.

    Raises:
        InvalidConfig: MLflow does not know such a URL.
        MissingPackage: MLflow, or what it needs for this kind of URL, is not installed.
    """
    try:
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=uri)
    except ImportError as error:
        raise MissingPackage(
            f"PREFLIGHT_MLFLOW_URI needs a package that is not installed ({trouble(error)}); "
            "pip install 'preflight-worker[mlflow]'"
        ) from error
    except Exception as error:  # MLflow's own, and those of its stores
        raise InvalidConfig(
            f"PREFLIGHT_MLFLOW_URI is {without_password(uri)}, which MLflow cannot use ({trouble(error)}); "
            "write e.g. http://host:5000"
        ) from error


def finished(job_id: str, artifact: Path, job: Path | None) -> Finished:
    """Return what the manifest in `artifact`, and the journals in `job` where they are still there, say of a job.

    Raises:
        ArtifactError: there is no whole model.
    """
    manifest = read_manifest(artifact)
    match manifest:
        case {
            "spec": dict(spec), "plan": dict(plan), "metrics": dict(metrics), "history": list(history),
            "created_at": str(created), "sha256": {"model.safetensors": str(digest)},
        }:  # fmt: skip
            ended = datetime.fromisoformat(created).timestamp()
        case _:
            raise ArtifactError(f"{artifact} holds no whole model: its manifest or its weights are missing or damaged")
    journals = Journals() if job is None else read_journals(job, job_id)
    values = [Value(point, when) for event, when in journals.progress for point in points(event)]
    for entry in history:
        done = EpochDone.model_validate({**_mapping(entry), **_header(job_id, 0, ended)})
        values += [Value(point, journals.epochs.get(done.epoch, ended)) for point in points(done)]
    epochs = len(history)
    values += [
        Value(Point(name.replace("test_", "test/"), epochs, float(value)), ended)
        for name, value in metrics.items()
        if isinstance(value, int | float)
    ]
    params = dict([*_flat("spec", spec), *_flat("plan", plan)])
    return Finished(job_id=job_id, artifact=artifact, model_sha256=digest, params=params, values=values)


def read_journals(job: Path, job_id: str) -> Journals:
    """Return what led to the model: what a killed process did beyond its last checkpoint was done again."""
    found = Journals()
    done, fresh = (0, 0), False
    for attempt in attempts(job):
        for record in read_runs(job / str(attempt) / JOURNAL):
            match record.kind, record.payload:
                case "start", _:
                    done, fresh = (0, 0), True
                case "resumed", {"epoch": int(epoch), "step": int(step)}:
                    done = epoch, step
                case "epoch", {"epoch": int(epoch)}:
                    found.epochs[epoch] = record.time
                case "progress", payload:
                    try:
                        event = Progress.model_validate({**payload, **_header(job_id, attempt, record.time)})
                    except ValidationError:
                        continue  # of another version
                    if fresh:
                        kept = done[0] * event.steps + done[1]
                        found.progress = [pair for pair in found.progress if position(pair[0]) <= kept]
                        fresh = False
                    found.progress.append((event, record.time))
    return found


def log(client: "MlflowClient", experiment: str, job: Finished) -> None:
    """Make the run of a job, unless it is there; one that was left unfinished, or is of another model, goes."""
    from mlflow.entities import Metric, Param

    found = client.get_experiment_by_name(experiment)
    experiment_id = client.create_experiment(experiment) if found is None else found.experiment_id
    for run in client.search_runs([experiment_id], f"tags.`{ID_TAG}` = '{job.job_id}'"):
        if run.info.status == FINISHED and run.data.tags.get(MODEL_TAG) == job.model_sha256:
            return
        client.delete_run(run.info.run_id)
    times = [_milliseconds(value.time) for value in job.values]
    run = client.create_run(
        experiment_id, start_time=min(times), run_name=job.job_id,
        tags={ID_TAG: job.job_id, MODEL_TAG: job.model_sha256},
    )  # fmt: skip
    run_id = run.info.run_id
    client.log_batch(run_id, params=[Param(name, value) for name, value in job.params.items()])
    metrics = [
        Metric(value.point.tag, value.point.value, when, value.point.step)
        for value, when in zip(job.values, times, strict=True)
    ]
    for first in range(0, len(metrics), MOST_METRICS):
        client.log_batch(run_id, metrics=metrics[first : first + MOST_METRICS])
    client.log_artifacts(run_id, str(job.artifact))
    client.set_terminated(run_id, FINISHED, end_time=max(times))


def _header(job_id: str, attempt: int, when: float) -> dict[str, JsonValue]:
    return {"seq": 0, "job_id": job_id, "attempt": attempt, "ts": when}


def _mapping(entry: JsonValue) -> dict[str, JsonValue]:
    return entry if isinstance(entry, dict) else {}


def _flat(name: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    """Yield the leaves of a JSON object, each under its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    else:
        yield name, str(value)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


if __name__ == "__main__":
    run_child(REQUEST, run)
