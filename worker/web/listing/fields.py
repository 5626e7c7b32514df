"""Fields that jobs are searched and sorted by, and what the index keeps of each job."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from pydantic import ValidationError

from preflight.client.job_state import STATE_FIELDS, JobRecord
from preflight.client.notes import Notes
from preflight.errors import InvalidConfig
from preflight.redis.untrusted.values import MAX_NUMBER, Refused, as_json
from preflight.wire import TrainJob

Kind = Literal["text", "tags", "number", "share", "time", "duration", "flag", "status"]

TOOK: Final = (
    "CASE WHEN started IS NULL THEN NULL WHEN status = 'running' THEN :now - started ELSE updated - started END"
)
FIELDS: Final[Mapping[str, tuple[Kind, str]]] = {
    "id": ("text", "job_id"), "status": ("status", "status"), "model": ("text", "model"),
    "dataset": ("text", "dataset"), "recipe": ("text", "recipe"), "worker": ("text", "worker"),
    "reason": ("text", "reason"), "attempt": ("number", "attempt"), "epoch": ("number", "epoch"),
    "epochs": ("number", "epochs"), "accuracy": ("share", "accuracy"), "loss": ("number", "loss"),
    "speed": ("number", "speed"), "started": ("time", "started"), "updated": ("time", "updated"),
    "took": ("duration", TOOK), "batch_size": ("number", "batch_size"), "learning_rate": ("number", "learning_rate"),
    "optimizer": ("text", "optimizer"), "schedule": ("text", "schedule"), "seed": ("number", "seed"),
    "deterministic": ("flag", "deterministic"), "tag": ("tags", "tags"), "note": ("text", "note"),
}  # fmt: skip
"""Name -> kind and SQL expression."""
WORDS_IN: Final = ("job_id", "member", "model", "dataset", "recipe", "tags", "note")
"""Columns in which a word is looked for."""
COLUMNS: Final = (
    "job_id", "member", "status", "running", "words",
    *(sql for _, sql in FIELDS.values() if sql not in ("job_id", "status", TOOK)),
)  # fmt: skip
OWN_FIELDS: Final = (
    "status", "rq_id", "attempt", "started_at", "updated_at", "worker", "dataset", "model", "recipe", "batch_size",
    "epoch", "epochs", "loss", "val_acc", "test_accuracy", "samples_per_s", "reason", "request",
)  # fmt: skip
"""Fields of a job's state hash that the index reads."""
MAX_NUMBER_BYTES: Final = 32
OF_REQUEST: Final = ("recipe", "batch_size", "learning_rate", "optimizer", "schedule", "seed", "deterministic")


NO_NOTES: Final = Notes()
Row = dict[str, str | float | None]
"""Column -> value."""


def index_row(record: JobRecord, member: str, notes: Notes = NO_NOTES) -> Row:
    """Return the columns of a job; `member` is RQ's id by which it was found.

    Of a job whose fields cannot be read at all, its id and its status are known.
    """
    try:
        row = {**_row(record, member), "tags": "".join(f"\n{tag}" for tag in notes.tags) + "\n", "note": notes.note}
        found = {name: _storable(value) for name, value in row.items()}
        return {**found, "words": "\n".join(str(found[name] or "") for name in WORDS_IN).lower()}
    except Exception:  # whatever one job's keys hold, the others are indexed
        header = {"job_id": record.job_id, "member": member, "status": record.status}
        return {
            **dict.fromkeys(COLUMNS),
            **header,
            "running": record.status == "running",
            "words": record.job_id.lower(),
        }


def _storable(value: str | float | None) -> str | float | None:
    """Return a value that SQLite takes; None for a number beyond 64 bits, which no field needs."""
    return None if isinstance(value, float | int) and abs(value) > MAX_NUMBER else value


def _row(record: JobRecord, member: str) -> Row:
    known = {name: value for name, value in record.own.items() if name in STATE_FIELDS and name != "request"}
    state, request = replace(record, own=known).state(), _request(_with_payload(record))
    accuracy = state.val_acc if state.test_accuracy is None else state.test_accuracy
    return {
        "job_id": state.job_id, "member": member, "status": state.status, "running": state.status == "running",
        "model": state.model or request.get("model"), "dataset": state.dataset or request.get("dataset"),
        "worker": state.worker, "reason": state.reason, "attempt": state.attempt, "epoch": state.epoch,
        "epochs": state.epochs or request.get("epochs"), "accuracy": accuracy, "loss": state.loss,
        "speed": state.samples_per_s, "started": state.started_at, "updated": state.updated_at,
        **{name: request.get(name) for name in OF_REQUEST},
    }  # fmt: skip


def _with_payload(record: JobRecord) -> Mapping[str, str]:
    """Return the state hash, of a waiting job with the request of its payload."""
    asked = record.asked.get("request")
    return record.own if asked is None else {**record.own, "request": json.dumps(asked)}


def _request(own: Mapping[str, str]) -> dict[str, str | float | None]:
    """Return the settings of a job as far as its state has them; a whole request has every one."""
    known: dict[str, str | float | None] = {"recipe": own.get("recipe"), "batch_size": _number(own.get("batch_size"))}
    if "request" not in own:
        return known
    try:
        job = TrainJob.model_validate_json(own["request"], extra="ignore")
        spec = job.spec()
    except (ValidationError, ValueError, InvalidConfig):  # of another version
        return known
    return {
        "recipe": job.recipe, "model": spec.model, "dataset": spec.dataset, "epochs": spec.epochs,
        "batch_size": spec.batch_size, "learning_rate": spec.learning_rate, "optimizer": spec.optimizer,
        "schedule": spec.schedule, "seed": spec.seed, "deterministic": spec.deterministic,
    }  # fmt: skip


def _number(text: str | None) -> float | None:
    try:
        value = None if text is None else as_json(text, MAX_NUMBER_BYTES)
    except Refused:
        return None
    return value if isinstance(value, int | float) else None
