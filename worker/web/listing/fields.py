"""Fields that jobs are searched and sorted by, and what the index keeps of each job."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from pydantic import ValidationError

from worker.client.job_state import STATE_FIELDS, JobRecord
from worker.wire import TrainJob

Kind = Literal["text", "number", "share", "time", "duration", "flag", "status"]

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
    "deterministic": ("flag", "deterministic"),
}  # fmt: skip
"""Name -> kind and SQL expression."""
COLUMNS: Final = (
    "job_id", "member", "status", "running",
    *(sql for _, sql in FIELDS.values() if sql not in ("job_id", "status", TOOK)),
)  # fmt: skip
OWN_FIELDS: Final = (
    "status", "rq_id", "attempt", "started_at", "updated_at", "worker", "dataset", "model", "recipe", "batch_size",
    "epoch", "epochs", "loss", "val_acc", "test_accuracy", "samples_per_s", "reason", "request",
)  # fmt: skip
"""Fields of a job's state hash that the index reads."""
OF_REQUEST: Final = ("recipe", "batch_size", "learning_rate", "optimizer", "schedule", "seed", "deterministic")


def index_row(record: JobRecord, member: str) -> dict[str, str | float | None]:
    """Return the columns of a job; `member` is RQ's id by which it was found."""
    known = {name: value for name, value in record.own.items() if name in STATE_FIELDS and name != "request"}
    state, request = replace(record, own=known).state(), _request(_with_payload(record))
    accuracy = state.val_acc if state.test_accuracy is None else state.test_accuracy
    found: dict[str, str | float | None] = {
        "job_id": state.job_id, "member": member, "status": state.status, "running": state.status == "running",
        "model": state.model or request.get("model"), "dataset": state.dataset or request.get("dataset"),
        "worker": state.worker, "reason": state.reason, "attempt": state.attempt, "epoch": state.epoch,
        "epochs": state.epochs or request.get("epochs"), "accuracy": accuracy, "loss": state.loss,
        "speed": state.samples_per_s, "started": state.started_at, "updated": state.updated_at,
        **{name: request.get(name) for name in OF_REQUEST},
    }  # fmt: skip
    return found


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
    except (ValidationError, ValueError):  # of a newer version
        return known
    return {
        "recipe": job.recipe, "model": spec.model, "dataset": spec.dataset, "epochs": spec.epochs,
        "batch_size": spec.batch_size, "learning_rate": spec.learning_rate, "optimizer": spec.optimizer,
        "schedule": spec.schedule, "seed": spec.seed, "deterministic": spec.deterministic,
    }  # fmt: skip


def _number(text: str | None) -> float | None:
    try:
        value = None if text is None else json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, int | float) else None
