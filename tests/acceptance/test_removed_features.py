"""A worker without one of its features trains, publishes and does what the others do."""

from pathlib import Path

import pytest
from support.files.trees import copy_packages, delete_feature, names_of_features
from support.worker.python_path import importing
from support.worker.services import StartWorker, digits_job, wait_for

from preflight import Client
from preflight.wire import JobWarning


@pytest.mark.slow
@pytest.mark.parametrize("name", names_of_features())
def test_a_worker_without_a_feature_trains(
    name: str, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    tree = copy_packages(tmp_path / "tree")
    delete_feature(tree, name)
    drawn, far = tmp_path / "drawn", tmp_path / "far"
    client.enqueue(digits_job(job_id="job", epochs=1, onnx=True))
    worker = start_worker(
        "--burst",
        environment={
            "PYTHONPATH": importing(tree)["PYTHONPATH"], "PREFLIGHT_REPORT": "auto",
            "PREFLIGHT_ARTIFACT_URL": f"file://{far}", "PREFLIGHT_TENSORBOARD_DIR": str(drawn),
        },
    )  # fmt: skip
    assert worker.wait() == 0, worker.output()
    assert wait_for(client, "job").status == "finished"
    result = client.result("job")
    assert result is not None
    assert result.onnx is not None
    assert (result.report is None) == (name == "report")
    assert [result.artifact_url is None, far.exists(), drawn.exists()] == (
        [True, False, False] if name == "exporters" else [False, True, True]
    )
    assert [event.message for event in client.events("job", timeout=5) if isinstance(event, JobWarning)] == []
