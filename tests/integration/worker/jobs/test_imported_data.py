"""Jobs on imported data, through a real Redis and a real worker."""

import json
import re
from pathlib import Path

import onnxruntime
import pytest
from click.testing import Result
from redis import Redis
from support.files.pictures import SHAPES, imported, save_tree
from support.worker.command_line import run
from support.worker.services import RunWorker, StartWorker

from preflight import Client, TrainJob
from preflight.redis import keys
from preflight.wire import DatasetReady, JobStarted, TrainingDone
from training.artifacts.model_dir import read_manifest
from training.catalog.catalog import Catalog
from worker.cli.formatting.results import class_table
from worker.config.settings import Settings

NAMES = ("disc ä", "square", "cross", "x y")


def job(**fields: object) -> TrainJob:
    return TrainJob.model_validate(
        {
            "type": "preflight.train.v1", "dataset": "mine", "epochs": 6, "batch_size": 8, "calibrate": False,
            "job_id": "a", **fields,
        },
        strict=True,
    )  # fmt: skip


def environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", settings.redis_url)
    for name in ("data", "artifact", "cache", "state"):
        monkeypatch.setenv(f"PREFLIGHT_{name.upper()}_DIR", str(getattr(settings, f"{name}_dir")))


def test_from_a_folder_to_a_model_with_class_names(
    settings: Settings, client: Client, run_worker: RunWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Result, manifest, report, ONNX file and prediction say which version it was, and name the classes."""
    environment(settings, monkeypatch)
    source = save_tree(tmp_path / "photos", 40, NAMES)
    added = run("data", "add", "mine", str(source), "--json")
    assert added.exit_code == 0, added.output
    version = json.loads(added.stdout)
    assert (version["dataset"], version["new"]) == ("mine@1", True)
    client.enqueue(job())
    run_worker({"PREFLIGHT_REPORT": "auto"})
    events = [*client.events("a")]
    (done,) = [event for event in events if isinstance(event, TrainingDone)]
    (ready,) = [event for event in events if isinstance(event, DatasetReady)]
    result = client.result("a")
    assert result is not None
    assert (result.dataset, result.dataset_sha256) == ("mine@1", version["sha256"])
    assert result.class_names == tuple(sorted(NAMES))
    table = class_table(result)
    assert table.splitlines()[2].split()[0] == "CLASS"
    assert all(name in table for name in NAMES)
    assert (done.dataset, ready.dataset, ready.classes) == ("mine@1", "mine@1", 4)
    state = client.status("a")
    assert (state.dataset, state.dataset_sha256) == ("mine@1", version["sha256"])
    assert state.request is not None
    assert state.request["dataset"] == "mine"
    manifest = read_manifest(settings.artifact_dir / "a")
    assert manifest is not None
    assert manifest["dataset"] == {"name": "mine@1", "train": ready.train_samples, "test": ready.test_samples,
                                   "sha256": version["sha256"]}  # fmt: skip
    evaluation = json.loads((settings.artifact_dir / "a" / "evaluation.json").read_bytes())
    assert evaluation["names"] == sorted(NAMES)
    report = (settings.artifact_dir / "a" / "report.html").read_text()
    assert all(name in report for name in NAMES)
    assert version["sha256"] in report
    pictures = [source / name / f"{seed}.png" for name in NAMES for seed in range(5)]
    said = run("predict", str(settings.artifact_dir / "a"), *map(str, pictures), "--json")
    answers = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(answers) == 20
    assert sum(answer["name"] == Path(answer["image"]).parent.name for answer in answers) > 10  # as in the test set
    assert answers[0]["classes"] == sorted(NAMES)


@pytest.mark.slow
def test_an_exported_model_names_its_classes_and_takes_colour(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(settings, monkeypatch)
    source = save_tree(tmp_path / "photos", 10, NAMES, side=24, mode="RGB")
    version = imported(settings.data_dir, source)
    assert version.shape == (3, 24, 24)
    trained = run(
        "train", "--dataset", "mine@1", "--max-steps", "1", "--batch-size", "8", "--no-calibrate", "--onnx", "--json",
        "--job-id", "a",
    )  # fmt: skip
    assert trained.exit_code == 0, trained.output
    exported = settings.artifact_dir / "a" / "model.onnx"
    metadata = onnxruntime.InferenceSession(exported).get_modelmeta().custom_metadata_map
    assert json.loads(metadata["classes"]) == sorted(NAMES)
    pictures = [str(source / NAMES[0] / f"{seed}.png") for seed in range(3)]
    by_torch, by_onnx = (run("predict", str(model), *pictures, "--json") for model in (exported.parent, exported))
    answers = [[json.loads(line)["name"] for line in each.stdout.splitlines()] for each in (by_torch, by_onnx)]
    assert len(answers[0]) == 3
    assert answers[0] == answers[1]


def test_all_attempts_use_the_version_of_the_first(
    settings: Settings, client: Client, connection: Redis, run_worker: RunWorker, tmp_path: Path
) -> None:
    """A newer version that comes meanwhile is for other jobs; one that is named is taken."""
    source = save_tree(tmp_path / "photos", 12)
    imported(settings.data_dir, source)
    save_tree(source, 6, first=12)
    imported(settings.data_dir, source)
    connection.set(keys.dataset("a"), "mine@1")
    connection.hset(keys.fence("a"), mapping={"attempt": 1})
    client.enqueue(job(epochs=1))
    client.enqueue(TrainJob(type="preflight.train.v1", dataset="mine", job_id="b", calibrate=False))
    client.enqueue(job(epochs=1, job_id="c", dataset="mine@1"))
    run_worker()
    begun = [event for name in "ab" for event in client.lifecycle_events(name) if isinstance(event, JobStarted)]
    batches = [event.batch_size for event in begun]
    assert batches == [8, 16]  # the default for few samples
    assert [client.status(name).dataset for name in ("a", "b", "c")] == ["mine@1", "mine@2", "mine@1"]
    (started,) = [event for event in client.lifecycle_events("a") if isinstance(event, JobStarted)]
    assert started.attempt == 2


def test_a_job_on_data_that_is_not_there_says_what_is(
    settings: Settings, client: Client, run_worker: RunWorker, tmp_path: Path
) -> None:
    imported(settings.data_dir, save_tree(tmp_path / "photos", 5))
    with Catalog(settings.data_dir).importing("unfinished"):
        client.enqueue(job(dataset="mine@7"))
        client.enqueue(job(dataset="unfinished", job_id="b"))
        client.enqueue(job(dataset="mime", job_id="c"))
        run_worker()
    messages = [client.status(name).message for name in ("a", "b", "c")]
    assert messages[0] == "data set 'mine' has no version 7; use one of mine@1"
    assert messages[1] == "data set 'unfinished' is being imported; wait until `preflight data add` has ended"
    assert re.match(r"dataset 'mime' is not known \(did you mean 'mine'\?\); use one of .*mine.*", messages[2] or "")


def test_what_a_job_needs_is_not_removed(
    settings: Settings, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(settings, monkeypatch)
    source = save_tree(tmp_path / "photos", 5)
    imported(settings.data_dir, source)
    imported(settings.data_dir, source, size=(14, 14))
    client.enqueue(job())
    refused = run("data", "remove", "mine@2")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == (
        "preflight: mine@2 is needed by 1 waiting or running job (a); wait until they have ended, or cancel them\n"
    )
    assert run("data", "remove", "mine").exit_code == 2
    assert run("data", "remove", "mine@1").stdout == "removed mine@1\n"
    client.cancel("a")
    assert run("data", "remove", "mine").stdout == "removed mine@2\n"
    assert Catalog(settings.data_dir).names() == []
    assert [*(settings.data_dir / "imported" / "stores").iterdir()] == []


def test_without_redis_nothing_is_removed_unless_it_is_forced(
    command_environment: None, tmp_path: Path  # noqa: ARG001 - an absent Redis
) -> None:  # fmt: skip
    imported(tmp_path / "data", save_tree(tmp_path / "photos", 5))
    refused: Result = run("data", "remove", "mine")
    assert refused.exit_code == 2
    assert "add --force" in refused.stderr
    assert "hunter2" not in refused.stderr
    assert run("data", "remove", "mine", "--force").exit_code == 0
    assert SHAPES[0] not in run("data", "list").stdout


def test_a_producer_knows_what_the_workers_have(
    settings: Settings, client: Client, connection: Redis, run_worker: RunWorker, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`preflight enqueue` looks in Redis: the producer's machine has neither data nor directory."""
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", settings.redis_url)
    monkeypatch.setenv("PREFLIGHT_DATA_DIR", str(tmp_path / "elsewhere"))
    imported(settings.data_dir, save_tree(tmp_path / "photos", 5))
    assert client.datasets() == frozenset()
    assert run("enqueue", "--dataset", "mine").exit_code == 2
    run_worker()
    assert {"mine", "mine@1", "mnist"} <= client.datasets()
    enqueued = run("enqueue", "--dataset", "mine@1", "--job-id", "a")
    assert (enqueued.exit_code, enqueued.stdout) == (0, "a\n")
    refused = run("enqueue", "--dataset", "mime")
    assert refused.exit_code == 2
    assert "dataset 'mime' is not known (did you mean 'mine'?); the workers have " in refused.stderr
    connection.hset(keys.datasets(settings.queue), mapping={"old": 1, "bad": "x" * 5_000, "y" * 5_000: 1})
    assert not {"old", "bad"} & client.datasets()


def test_a_worker_fetches_what_another_machine_added(
    settings: Settings, client: Client, start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the object store is shared; a second job finds the data on the disk."""
    bucket = (tmp_path / "bucket").as_uri()
    monkeypatch.setenv("PREFLIGHT_DATASET_URL", bucket)
    monkeypatch.setenv("PREFLIGHT_DATA_DIR", str(tmp_path / "elsewhere"))
    added = run("data", "add", "mine", str(save_tree(tmp_path / "photos", 10)), "--json")
    assert added.exit_code == 0, added.output
    client.enqueue(job(epochs=1))
    client.enqueue(job(epochs=1, job_id="b", dataset="mine@1"))
    client.enqueue(job(epochs=1, job_id="c", dataset="absent"))
    start_worker("--burst", environment={"PREFLIGHT_DATASET_URL": bucket}).wait()
    assert [client.status(name).dataset for name in ("a", "b")] == ["mine@1", "mine@1"]
    assert client.status("b").dataset_sha256 == json.loads(added.stdout)["sha256"]
    assert [client.status(name).status for name in ("a", "b", "c")] == ["finished", "finished", "failed"]
    assert "dataset 'absent' is not known" in (client.status("c").message or "")
    assert Catalog(settings.data_dir).find("mine").reference == "mine@1"
