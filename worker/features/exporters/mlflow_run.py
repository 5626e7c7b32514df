"""Log a finished job to MLflow as one run: parameters, curves and the model's files."""

from typing import TYPE_CHECKING, Final

from preflight.errors import ArtifactError
from worker.features.exporters.mlflow_server import explain_elsewhere, open_experiment
from worker.features.exporters.training_history import FinishedJob

if TYPE_CHECKING:
    from mlflow import MlflowClient

ID_TAG: Final = "preflight.job_id"
MODEL_TAG: Final = "preflight.model_sha256"
FINISHED: Final = "FINISHED"
MAX_METRICS: Final = 1_000
"""MLflow's limit of metrics in a batch."""


def log_run(client: "MlflowClient", experiment: str, job: FinishedJob) -> None:
    """Log the run of a job, unless it exists; delete unfinished runs and those of another model.

    Raises:
        ArtifactError: the server can take no run, or, once all else is logged, no files.
    """
    from mlflow.entities import Metric, Param

    experiment_id = open_experiment(client, experiment)
    for run in client.search_runs([experiment_id], f"tags.`{ID_TAG}` = '{job.job_id}'"):
        if run.info.status == FINISHED and run.data.tags.get(MODEL_TAG) == job.model_sha256:
            return
        client.delete_run(run.info.run_id)
    metrics = [Metric(scalar.tag, scalar.value, round(time * 1000), scalar.step) for scalar, time in job.values]
    run = client.create_run(
        experiment_id, start_time=min(metric.timestamp for metric in metrics), run_name=job.job_id,
        tags={ID_TAG: job.job_id},
    )  # fmt: skip
    run_id = run.info.run_id
    client.log_batch(run_id, params=[Param(name, value) for name, value in job.params.items()])
    for first in range(0, len(metrics), MAX_METRICS):
        client.log_batch(run_id, metrics=metrics[first : first + MAX_METRICS])
    last = max(metric.timestamp for metric in metrics)
    elsewhere = explain_elsewhere(client, run)
    if elsewhere is not None:  # the run lacks the model's tag: a later export replaces it
        client.set_terminated(run_id, FINISHED, end_time=last)
        raise ArtifactError(f"parameters and curves are logged, but not the model's files: {elsewhere}")
    client.log_artifacts(run_id, str(job.artifact))
    client.set_tag(run_id, MODEL_TAG, job.model_sha256)
    client.set_terminated(run_id, FINISHED, end_time=last)
