"""One job exported to S3, MLflow and TensorBoard, through a redeploy and with an unavailable store."""

import json
from pathlib import Path

import pytest
from contexts import ListSink
from objects import BUCKET, CREDENTIALS, objects
from services import StartWorker, digits_job

from training.artifacts.model_dir import MANIFEST, MODEL
from worker.client import Client
from worker.config.settings import Settings
from worker.exporters.tensorboard import tensorboard_sinks
from worker.jobs.context import JobContext
from worker.jobs.control import JobControl
from worker.jobs.local.training import upload_local
from worker.jobs.outcome import Finished
from worker.jobs.paths import open_paths
from worker.jobs.pipeline import resume_pipeline
from worker.jobs.stages.extras import add_extras
from worker.wire import AnyEvent, ArtifactUploaded, JobWarning, TrainingDone, TrainResult


def test_a_model_is_exported_by_a_later_attempt(
    settings: Settings, client: Client, start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGTERM during the upload, the result of which is there already; a silent S3 gives a warning.

    The model stays on the local disk, and `preflight upload` sends it.
    """
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    url, runs_uri, drawn = f"s3://{BUCKET}/models", f"file://{tmp_path}/runs", tmp_path / "drawn"
    job = digits_job(job_id="job")

    def adopted(attempt: int, control: JobControl, **more: object) -> tuple[TrainResult, list[AnyEvent]]:
        """Run the next attempt; return its result and its events."""
        set_up = settings.model_copy(update={"artifact_url": url, "tensorboard_dir": drawn, **more})
        kept = ListSink()
        context = JobContext(
            settings=set_up, worker="w", job_id="job", attempt=attempt, paths=open_paths(settings, "job", attempt),
            sinks=(kept, *tensorboard_sinks(set_up, job, "job", attempt)), control=control,
        )  # fmt: skip
        outcome = resume_pipeline(context, job)
        assert isinstance(outcome, Finished)
        assert outcome.extras is not None
        return add_extras(context, outcome.extras), kept.events

    with objects() as s3:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": s3.url, "MLFLOW_ALLOW_FILE_STORE": "true"}.items():
            monkeypatch.setenv(name, value)
        s3.held = MODEL
        client.enqueue(job)
        worker = start_worker(environment={"PREFLIGHT_ARTIFACT_URL": url, "PREFLIGHT_TENSORBOARD_DIR": str(drawn)})
        assert s3.holding.wait(90)
        worker.stop()
        assert client.status("job").status == "finished"
        assert "hunter2" not in worker.output()

        s3.reset()
        result, events = adopted(2, JobControl(), mlflow_uri=runs_uri)
        assert (result.status, result.artifact_url) == ("finished", f"{url}/job")
        done, *sent = events
        assert isinstance(done, TrainingDone)
        assert done.extras == "upload mlflow"
        assert [(event.artifact_url, event.mlflow_uri) for event in sent if isinstance(event, ArtifactUploaded)] == [
            (result.artifact_url, None), (None, runs_uri),
        ]  # fmt: skip
        manifest = json.loads(s3.content(f"models/job/{MANIFEST}") or b"null")
        assert manifest["sha256"][MODEL] == result.model_sha256

        curves = EventAccumulator(str(drawn / "job"))
        curves.Reload()
        losses = curves.Scalars("train/loss")
        assert curves.Scalars("test/accuracy")[-1].value == pytest.approx(result.test_accuracy)
        runs = MlflowClient(tracking_uri=runs_uri)
        experiment = runs.get_experiment_by_name("preflight")
        assert experiment is not None
        (run,) = runs.search_runs([experiment.experiment_id])
        assert run.data.metrics["test/accuracy"] == result.test_accuracy
        logged = runs.get_metric_history(run.info.run_id, "train/loss")
        assert [at.step for at in logged] == [at.step for at in losses]
        assert [at.value for at in logged] == pytest.approx([at.value for at in losses])

        s3.held = MODEL
        result, events = adopted(3, JobControl(), export_seconds=2.0)
        assert (result.status, result.artifact_url) == ("finished", None)
        assert [event.message for event in events if isinstance(event, JobWarning)] == [
            f"the model was not sent to {url} ({url} took more than 2 s: it did not answer); it is kept in "
            f"{settings.artifact_dir / 'job'}, and `preflight upload job` sends it"
        ]

        s3.reset()
        assert upload_local("job", settings.model_copy(update={"artifact_url": url})) == [url]
        # The manifest is of the last attempt.
        assert json.loads(s3.content(f"models/job/{MANIFEST}") or b"null") == {**manifest, "attempt": 3}
