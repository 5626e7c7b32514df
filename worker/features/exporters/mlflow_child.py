"""The child process that logs a finished job to MLflow."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from preflight.config.secrets import redact_urls
from preflight.errors import ArtifactError, InvalidConfig, MissingPackage
from preflight.files.journal import JournalWriter
from preflight.object_store import describe_error
from preflight.packages import how_to_install
from training.process.child_main import serve_request
from worker.config.settings import load
from worker.features.exporters.base import REQUEST, ExportRequest
from worker.features.exporters.mlflow_run import log_run
from worker.features.exporters.mlflow_server import explain_elsewhere, open_experiment
from worker.features.exporters.retry import retry_export
from worker.features.exporters.training_history import read_finished_job

if TYPE_CHECKING:
    from mlflow import MlflowClient


def run(request: ExportRequest, journal: JournalWriter, should_stop: Callable[[], bool]) -> None:  # noqa: ARG001 - every child's signature
    """Log the job, and write `done`; each failed try is a `retry`."""
    settings = load()
    client = connect(settings.mlflow_uri or "")
    if request.artifact is not None:
        job = read_finished_job(request.job_id, request.artifact, request.job)
        retry_export(partial(log_run, client, settings.mlflow_experiment, job), journal)
    elif request.connect:
        retry_export(partial(probe_server, client, settings.mlflow_experiment), journal)
    journal.write("done", {}, durable=True)


def connect(uri: str) -> "MlflowClient":
    """Return a client, without a request to the server.

    Raises:
        InvalidConfig: MLflow does not support the URL.
        MissingPackage: MLflow, or a package for this kind of URL, is not installed.
    """
    try:
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=uri)
    except ImportError as error:
        raise MissingPackage(
            f"PREFLIGHT_MLFLOW_URI needs a package that is not installed ({describe_error(error)}); "
            f"{how_to_install('mlflow')}"
        ) from error
    except Exception as error:  # MLflow's own, and those of its stores
        raise InvalidConfig(
            f"PREFLIGHT_MLFLOW_URI is {redact_urls(uri)}, which MLflow cannot use ({describe_error(error)}); "
            "write e.g. http://host:5000"
        ) from error


def probe_server(client: "MlflowClient", experiment: str) -> None:
    """Check that the server takes runs with files, by a run that is deleted at once; raises as `log_run`."""
    run = client.create_run(open_experiment(client, experiment), run_name="preflight doctor")
    try:
        if (elsewhere := explain_elsewhere(client, run)) is not None:
            raise ArtifactError(elsewhere)
    finally:
        client.delete_run(run.info.run_id)


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, run)


if __name__ == "__main__":
    main()
