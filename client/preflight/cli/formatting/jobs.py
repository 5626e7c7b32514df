"""Table of `preflight jobs`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from preflight.cli.formatting.text import columns, printable
from preflight.numbers import format_age, plural
from preflight.wire import JobState

if TYPE_CHECKING:
    from preflight.client.notes import Notes

WAITING: Final = ("scheduled", "deferred", "rate_limited")
"""RQ's statuses of a job that waits for its time, for another job, or for its turn."""


def job_table(states: Sequence[JobState], notes: Mapping[str, Notes]) -> str:
    """Return jobs as aligned columns, with their tags where one has any."""
    if not states:
        return "no jobs"
    head: tuple[str, ...] = ("JOB", "STATUS", "DATASET", "MODEL", "UPDATED", "TOOK", "EPOCH", "ACCURACY", "WHY")
    rows: list[tuple[str, ...]] = [_row(state, time.time()) for state in states]
    tags = [printable(" ".join(notes[state.job_id].tags)) if state.job_id in notes else "" for state in states]
    if any(tags):
        head, rows = (*head, "TAGS"), [(*row, tag) for row, tag in zip(rows, tags, strict=True)]
    return columns([head, *rows])


def _row(state: JobState, now: float) -> tuple[str, ...]:
    updated = "" if state.updated_at is None else f"{format_age(now - state.updated_at)} ago"
    epoch = "" if state.epoch is None else f"{state.epoch}/{state.epochs or '?'}"
    accuracy = state.test_accuracy if state.test_accuracy is not None else state.val_acc
    return (
        state.job_id, _status(state), printable(state.dataset or ""), printable(state.model or ""),
        updated, _took(state, now), epoch, "" if accuracy is None else f"{accuracy:.2%}",
        printable(state.reason or ""),
    )  # fmt: skip


def _status(state: JobState) -> str:
    """Return the status, with RQ's status where that says why the job waits."""
    why = state.rq_status if state.status == "queued" and state.rq_status in WAITING else None
    if state.status == "running" and (state.workers or 1) > 1:
        return f"running ({plural(state.workers or 1, 'worker')})"
    if state.status == "running" and state.shared_with:
        return f"running ({state.processors} of {plural(state.of_processors or 0, 'processor')})"
    return f"{state.status} ({why})" if why else state.status


def _took(state: JobState, now: float) -> str:
    """Return the duration of the newest attempt, up to its last event."""
    if state.started_at is None:
        return ""
    until = now if state.status == "running" else state.updated_at or now
    return format_age(until - state.started_at)
