"""One job exported to S3, MLflow and TensorBoard, through a redeploy and with an unavailable store."""

import json
from pathlib import Path

import pytest
from support.files.objects import BUCKET, CREDENTIALS, objects
from support.worker.services import StartWorker, digits_job

from preflight import Client
from preflight.wire import ArtifactUploaded, JobWarning, TrainingDone
from training.artifacts.model_dir import MANIFEST, MODEL
from worker.config.settings import Settings
from worker.features.entries import FEATURES
from worker.jobs.local.training import upload_local


@pytest.mark.slow
def test_a_model_is_exported_by_the_next_worker(
    settings: Settings, client: Client, start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGTERM during the upload, the result of which is there already; a silent S3 gives a warning.

    The model stays on the local disk, and `preflight upload` sends it.
    """
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    url, runs_uri, drawn = f"s3://{BUCKET}/models", f"file://{tmp_path}/runs", tmp_path / "drawn"
    exporting = {
        "PREFLIGHT_ARTIFACT_URL": url, "PREFLIGHT_MLFLOW_URI": runs_uri, "PREFLIGHT_TENSORBOARD_DIR": str(drawn)
    }  # fmt: skip
    with objects() as s3:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": s3.url, "MLFLOW_ALLOW_FILE_STORE": "true"}.items():
            monkeypatch.setenv(name, value)
        s3.held = MODEL
        client.enqueue(digits_job(job_id="job"))
        worker = start_worker(environment=exporting)
        assert s3.holding.wait(90)
        assert client.status("job").status == "finished"
        worker.stop()
        assert "hunter2" not in worker.output()

        s3.reset()
        assert start_worker("--burst", environment=exporting).wait() == 0
        result, state = client.result("job"), client.status("job")
        assert result is not None
        assert (state.attempt, state.artifact_url, result.artifact_url) == (1, f"{url}/job", f"{url}/job")
        *_, done, uploaded, logged_run = client.events("job", timeout=5)
        assert isinstance(done, TrainingDone)
        assert (done.extras, done.artifact_url) == ("upload mlflow", None)
        assert isinstance(uploaded, ArtifactUploaded)
        assert isinstance(logged_run, ArtifactUploaded)
        assert (uploaded.artifact_url, logged_run.mlflow_uri) == (result.artifact_url, runs_uri)
        manifest = json.loads(s3.content(f"models/job/{MANIFEST}") or b"null")
        assert manifest["sha256"][MODEL] == result.model_sha256

        curves = EventAccumulator(str(drawn / "job"))
        curves.Reload()
        losses = curves.Scalars("train/loss")
        assert [at.value for at in curves.Scalars("test/accuracy")] == [pytest.approx(result.test_accuracy)]
        runs = MlflowClient(tracking_uri=runs_uri)
        experiment = runs.get_experiment_by_name("preflight")
        assert experiment is not None
        (run,) = runs.search_runs([experiment.experiment_id])
        assert run.data.metrics["test/accuracy"] == pytest.approx(result.test_accuracy, abs=1e-5)
        logged = runs.get_metric_history(run.info.run_id, "train/loss")
        assert [at.step for at in logged] == [at.step for at in losses]
        assert [at.value for at in logged] == pytest.approx([at.value for at in losses], abs=1e-4)

        s3.held = MODEL
        client.enqueue(digits_job(job_id="late"))
        silent = {"PREFLIGHT_ARTIFACT_URL": url, "PREFLIGHT_EXPORT_SECONDS": "2"}
        assert start_worker("--burst", environment=silent).wait() == 0
        assert (client.status("late").status, client.status("late").artifact_url) == ("finished", None)
        warnings = [event.message for event in client.events("late", timeout=5) if isinstance(event, JobWarning)]
        assert warnings == [
            f"the model was not sent to {url} ({url} took more than 2 s: it did not answer); it is kept in "
            f"{settings.artifact_dir / 'late'}, and `preflight upload late` sends it"
        ]
        s3.reset()
        assert upload_local("late", settings.model_copy(update={"artifact_url": url}), FEATURES) == [url]
        assert json.loads(s3.content(f"models/late/{MANIFEST}") or b"null")["attempt"] == 1
