"""Rows of the job list from states as Redis has them, those of other versions too."""

import json

import pytest
from pydantic import JsonValue

from preflight.client.job_state import JobRecord
from worker.web.listing.fields import index_row

OF_0_25: dict[str, JsonValue] = {"type": "preflight.train.v1", "dataset": "mnist", "model": "cnn", "epochs": 3}


def row_of(request: dict[str, JsonValue]) -> dict[str, object]:
    own = {"status": "finished", "model": "cnn", "dataset": "mnist", "request": json.dumps(request), "batch_size": "64"}
    return dict(index_row(JobRecord("j", "j", own, {}), "j"))


@pytest.mark.parametrize("removed", [{"plan": {"processes": 2}}, {"average_every": 8}])
def test_a_job_with_a_removed_field_is_listed(removed: dict[str, JsonValue]) -> None:
    """Its request is no job of this version; what its state says is shown."""
    row = row_of({**OF_0_25, **removed})
    assert (row["status"], row["model"], row["dataset"], row["batch_size"]) == ("finished", "cnn", "mnist", 64)


def test_a_job_with_removed_fields_at_their_defaults_is_listed_whole() -> None:
    row = row_of({**OF_0_25, "plan": {"processes": 1}, "average_every": 1})
    assert (row["epochs"], row["deterministic"]) == (3, False)
