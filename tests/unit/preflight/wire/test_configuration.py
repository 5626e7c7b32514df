"""The configuration of a job in words, and the request that is kept of it."""

import pytest
from pydantic import JsonValue

from preflight.contract.spec import DEFAULTS
from preflight.wire import JobStarted, JobState, TrainJob, flatten, read_job, unflatten
from preflight.wire.configuration import MAX_REQUEST_LENGTH, configuration, request_of


def job(**fields: JsonValue) -> TrainJob:
    return read_job({"type": "preflight.train.v1", "dataset": "mnist", **fields})


def changed(asked: TrainJob) -> dict[str, str]:
    return {field.name: field.value for field in configuration(asked) if field.changed}


def test_every_setting_is_there_and_defaults_are_told_apart() -> None:
    """Parts of objects by name; of its plan only what the job sets."""
    names = [field.name for field in configuration(job())]
    fields = {*TrainJob.model_fields} - {"type", "job_id", "plan", "augmentation"}
    assert fields <= {*names}
    assert "augmentation.scale" in names
    assert not [name for name in names if name.startswith("plan.")]
    assert changed(job(epochs=DEFAULTS.epochs, seed=DEFAULTS.seed, plan={})) == {}
    assert changed(job(epochs=7, calibrate=False, patience=2, augmentation={"scale": 0.1}, plan={"threads": 3},
                       calibration_knobs=["threads", "loader"])) == {
        "epochs": "7", "calibrate": "no", "patience": "2", "augmentation.scale": "0.1", "plan.threads": "3",
        "calibration_knobs": "threads, loader",
    }  # fmt: skip


def test_a_recipe_counts_as_what_it_stands_for() -> None:
    found = changed(job(recipe="fast"))
    assert (found["recipe"], found["model"], found["batch_size"]) == ("fast", "cnn-small-cosine", "320")


def test_a_large_seed_keeps_its_digits() -> None:
    """A browser would round the number."""
    assert changed(job(seed=2**63 - 1)) == {"seed": "9223372036854775807"}


@pytest.mark.parametrize(("knobs", "kept"), [(2, True), (1000, False)])
def test_a_request_is_kept_as_it_was_sent(knobs: int, kept: bool) -> None:
    """Without its id and without what is not set; a very long one is not kept."""
    asked = job(job_id="a", epochs=2, calibration_knobs=["threads"] * knobs)
    expected: JsonValue = {"type": "preflight.train.v1", "dataset": "mnist", "epochs": 2,
                           "calibration_knobs": ["threads"] * knobs}  # fmt: skip
    assert request_of(asked) == (expected if kept else None)
    assert kept or len(str(expected)) > MAX_REQUEST_LENGTH


def test_a_request_survives_a_stream_record_and_a_state() -> None:
    """Both have texts only."""
    request = request_of(job(augmentation={"scale": 0.1}))
    event = JobStarted(seq=1, job_id="a", attempt=1, ts=1, worker="w", dataset="mnist", model="cnn", epochs=1,
                       batch_size=1, request=request)  # fmt: skip
    assert unflatten(flatten(event)) == event
    state = JobState.model_validate({"job_id": "a", "status": "queued", "request": flatten(event)["request"]})
    assert state.request == request
