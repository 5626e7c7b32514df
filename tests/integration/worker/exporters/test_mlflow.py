"""What becomes a run in MLflow, kept by its file store: a tracking server needs all of MLflow, which no worker does."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import JsonValue

from training.artifacts.publish import save
from training.errors import TimedOut
from training.process.journal import JournalWriter
from worker.exporters import base as exports
from worker.exporters.mlflow_child import JOURNAL, connected, finished, log

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
    """A model that a second attempt finished, after the first was killed beyond its last checkpoint."""
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
    save(tmp_path / "model", b"weights", FACTS)
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def file_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


@pytest.fixture
def client(tmp_path: Path) -> "MlflowClient":
    return connected(f"file://{tmp_path}/runs")


def runs(client: "MlflowClient") -> "list[Run]":
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def test_a_job_becomes_one_run(client: "MlflowClient", artifact: Path, tmp_path: Path) -> None:
    """However often it is sent; a run that was cut off is replaced, and another model is another run."""
    job = finished("job", artifact, tmp_path / "job")
    log(client, EXPERIMENT, job)
    (first,) = runs(client)
    log(client, EXPERIMENT, job)
    assert [one.info.run_id for one in runs(client)] == [first.info.run_id]

    assert (first.info.run_name, first.info.status) == ("job", "FINISHED")
    assert first.data.tags["preflight.job_id"] == "job"
    assert first.data.params == {
        "spec.dataset": "digits",
        "spec.augmentation.rotate_degrees": "0.0",
        "plan.threads": "1",
    }
    assert first.data.metrics["test/accuracy"] == 0.875
    assert first.data.metrics["train_seconds"] == 2.0
    history = client.get_metric_history(first.info.run_id, "train/loss")
    assert [(at.step, at.value) for at in history] == [(100, 4.0), (140, 3.0), (200, 2.0)]
    assert all(at.timestamp > 1_767_225_600_000 for at in history)
    epochs = client.get_metric_history(first.info.run_id, "validation/accuracy")
    assert [(at.step, at.value) for at in epochs] == [(1, 0.25), (2, 0.5)]
    assert {file.path for file in client.list_artifacts(first.info.run_id)} == {"manifest.json", "model.safetensors"}

    client.update_run(first.info.run_id, status="RUNNING")
    log(client, EXPERIMENT, job)
    (second,) = runs(client)
    assert second.info.run_id != first.info.run_id
    assert second.info.status == "FINISHED"


def test_what_attempts_left_may_be_gone(artifact: Path, tmp_path: Path) -> None:
    """Then the epochs and the final figures are left, from the manifest."""
    tags = {value.point.tag for value in finished("job", artifact, tmp_path / "none").values}
    assert {"validation/accuracy", "test/accuracy", "test/loss", "train_seconds"} == tags


class Impatient:
    """Ends a child at its second failure, as the time does that it is given."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        self.said.append(f"{kind} {payload['message']}")
        if len(self.said) == 2:
            raise TimedOut(f"durable={durable}")


def test_a_server_that_is_away_is_asked_again(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is the matter is said, without the password of its URL."""
    monkeypatch.setattr(exports, "FIRST_PAUSE", 0.01)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", exports.MLFLOW["MLFLOW_HTTP_REQUEST_MAX_RETRIES"])
    client, job, report = connected("http://user:hunter2@127.0.0.1:9"), finished("job", artifact, None), Impatient()
    with pytest.raises(TimedOut):
        exports.persist(partial(log, client, EXPERIMENT, job), report)
    assert ["retry MlflowException" in said for said in report.said] == [True, True]
    assert "hunter2" not in "".join(report.said)
