"""Fine-tuning by one worker and by a group: after a kill it ends with the weights of a quiet run, to the bit."""

import os
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.groups.jobs import group_job, named, start_group, until, work_horse
from support.worker.services import StartWorker, digits_job, wait_for
from support.worker.survival import assert_nothing_duplicated

from preflight import Client
from preflight.wire import JobResumed
from training.artifacts.model_dir import MODEL
from worker.config.settings import Settings


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_a_killed_fine_tuning_resumes_to_the_same_weights(
    client: Client, settings: Settings, start_worker: StartWorker, count: int
) -> None:
    workers = start_group(start_worker, count + 1)
    client.enqueue(digits_job(job_id="parent", epochs=2))
    parent = wait_for(client, "parent")
    tuning: dict[str, object] = {"init_from": "parent", "deterministic": True}
    client.enqueue(group_job("begun", count, **tuning, learning_rate=1e-9, epochs=1, max_steps=1))
    assert wait_for(client, "begun").status == "finished"
    before, after = (load_file(settings.artifact_dir / name / MODEL) for name in ("parent", "begun"))
    for name, tensor in before.items():
        if "running" not in name and "num_batches" not in name:  # batch norm's statistics move with every batch
            assert np.allclose(tensor, after[name], atol=1e-6), name
    client.enqueue(group_job("quiet", count, **tuning))
    quiet = wait_for(client, "quiet")
    client.enqueue(group_job("job", count, **tuning))
    until(client, "job", lambda event: event.type == "checkpoint_saved")
    leader = client.status("job").worker
    assert leader is not None
    os.kill(work_horse(named(workers, leader)).pid, signal.SIGKILL)
    state = wait_for(client, "job", seconds=120)
    assert (state.status, state.attempt, state.workers or 1) == ("finished", 2, count)
    assert state.model_sha256 == quiet.model_sha256
    result = client.result("job")
    assert result is not None
    assert result.parent is not None
    assert (result.parent.job_id, result.parent.model_sha256) == ("parent", parent.model_sha256)
    events = assert_nothing_duplicated(client, "job")
    assert any(isinstance(event, JobResumed) for event in events)
