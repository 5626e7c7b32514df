"""Runs in MLflow's file store: a tracking server needs all of MLflow, a worker only its client."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import JsonValue

from preflight.errors import TimedOut
from preflight.files.journal import JournalWriter
from training.artifacts.model_dir import save
from worker.features.exporters import base, retry
from worker.features.exporters.mlflow_child import connect
from worker.features.exporters.mlflow_run import log_run
from worker.features.exporters.training_history import JOURNAL, read_finished_job

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

EXPERIMENT = "experiment"
FACTS: dict[str, JsonValue] = {
    "job_id": "job", "created_at": "2026-01-01T00:00:00+00:00",
    "spec": {"dataset": "digits", "augmentation": {"rotate_degrees": 0.0}}, "plan": {"threads": 1},
    "metrics": {"test_accuracy": 0.875, "test_loss": 0.5, "train_seconds": 2.0, "profile": {"steps": 1}},
    "history": [
        {"epoch": epoch, "loss": 1.0, "val_acc": 0.25 * epoch, "val_loss": None, "samples_per_s": 1.0, "seconds": 1.0,
         "train_seconds": 1.0}
        for epoch in (1, 2)
    ],
}  # fmt: skip


def progress(journal: JournalWriter, epoch: int, step: int, loss: float) -> None:
    journal.write("progress", {"epoch": epoch, "epochs": 2, "step": step, "steps": 100, "loss": loss, "accuracy": 0.5,
                               "samples_per_s": 10.0, "eta_s": 1.0})  # fmt: skip


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """A model finished by a second attempt, after the first was killed some steps after its checkpoint."""
    for attempt in (1, 2):
        (tmp_path / "job" / str(attempt)).mkdir(parents=True)
    with JournalWriter(tmp_path / "job" / "1" / JOURNAL, "first") as journal:
        journal.write("start", {})
        progress(journal, 1, 100, 4.0)
        journal.write("epoch", {"epoch": 1})
        progress(journal, 2, 40, 3.0)
        progress(journal, 2, 80, 9.0)
    with JournalWriter(tmp_path / "job" / "2" / JOURNAL, "second") as journal:
        journal.write("start", {})
        journal.write("resumed", {"epoch": 1, "step": 50})
        progress(journal, 2, 100, 2.0)
        journal.write("epoch", {"epoch": 2})
    save(tmp_path / "model", (b"weights",), FACTS)
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def file_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


@pytest.fixture
def client(tmp_path: Path) -> "MlflowClient":
    return connect(f"file://{tmp_path}/runs")


def runs(client: "MlflowClient") -> "list[Run]":
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def test_a_job_becomes_one_run(client: "MlflowClient", artifact: Path, tmp_path: Path) -> None:
    """An unfinished run is replaced, a finished one is kept."""
    job = read_finished_job("job", artifact, tmp_path / "job")
    log_run(client, EXPERIMENT, job)
    (first,) = runs(client)
    log_run(client, EXPERIMENT, job)
    assert [one.info.run_id for one in runs(client)] == [first.info.run_id]

    assert (first.info.run_name, first.info.status) == ("job", "FINISHED")
    assert first.data.tags["preflight.job_id"] == "job"
    assert first.data.params == {
        "spec.dataset": "digits", "spec.augmentation.rotate_degrees": "0.0", "plan.threads": "1",
    }  # fmt: skip
    assert first.data.metrics["test/accuracy"] == 0.875
    assert first.data.metrics["train_seconds"] == 2.0
    history = client.get_metric_history(first.info.run_id, "train/loss")
    assert [(at.step, at.value) for at in history] == [(100, 4.0), (140, 3.0), (200, 2.0)]
    assert all(at.timestamp > 1_767_225_600_000 for at in history)
    epochs = client.get_metric_history(first.info.run_id, "validation/accuracy")
    assert [(at.step, at.value) for at in epochs] == [(1, 0.25), (2, 0.5)]
    assert {file.path for file in client.list_artifacts(first.info.run_id)} == {"manifest.json", "model.safetensors"}

    client.update_run(first.info.run_id, status="RUNNING")
    log_run(client, EXPERIMENT, job)
    (second,) = runs(client)
    assert second.info.run_id != first.info.run_id
    assert second.info.status == "FINISHED"


def test_a_job_without_journals_is_logged(artifact: Path, tmp_path: Path) -> None:
    """With epochs and test metrics, from the manifest."""
    tags = {scalar.tag for scalar, _ in read_finished_job("job", artifact, tmp_path / "none").values}
    assert {"validation/accuracy", "test/accuracy", "test/loss", "train_seconds"} == tags


class StopAtSecondFailure:
    """Raises at the second failure, as a deadline does."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        self.said.append(f"{kind} {payload['message']}")
        if len(self.said) == 2:
            raise TimedOut(f"durable={durable}")


def test_an_unavailable_server_is_retried(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error is reported without the password of the URL."""
    monkeypatch.setattr(retry, "BASE_PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", base.MLFLOW_DEFAULTS["MLFLOW_HTTP_REQUEST_MAX_RETRIES"])
    client, report = connect("http://user:hunter2@127.0.0.1:9"), StopAtSecondFailure()
    job = read_finished_job("job", artifact, None)
    with pytest.raises(TimedOut):
        retry.retry_export(partial(log_run, client, EXPERIMENT, job), report)
    assert ["retry MlflowException" in said for said in report.said] == [True, True]
    assert "hunter2" not in "".join(report.said)
