"""What each event of a group adds to the counters of all jobs."""

from collections.abc import Mapping

import pytest
from pydantic import JsonValue
from support.worker.job_events import event

from preflight.events.counters import counter_increments

MEASURED: Mapping[str, JsonValue] = {
    "workers": 2, "alone_samples_per_s": 10, "group_samples_per_s": 11, "speedup": 1.1, "message": "measured",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "fields", "increments"), [
    ("group_formed", {"workers": 2, "members": ["a", "b"], "seconds": 1, "message": "formed"}, {"groups": 1}),
    ("group_measured", {**MEASURED, "kept": False}, {"groups_let_go": 1}),
    ("group_measured", {**MEASURED, "kept": True}, {}),
    ("group_changed", {"workers": 1, "members": ["a"], "left": ["b", "c"], "message": "left"}, {"members_left": 2}),
    ("group_changed", {"workers": 2, "members": ["a", "b"], "joined": ["b"], "message": "joined"}, {}),
    ("group_short", {"workers": 1, "wanted": 2, "message": "short"}, {"groups_short": 1}),
])  # fmt: skip
def test_groups_are_counted(kind: str, fields: Mapping[str, JsonValue], increments: Mapping[str, float]) -> None:
    assert counter_increments(event(kind, **fields), began=None) == increments
