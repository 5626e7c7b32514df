"""Aliases of models as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from preflight.cli.formatting.text import columns, printable
from worker.models.records import Alias, Promotion
from worker.models.store import ModelStore


def format_aliases(aliases: Sequence[Alias]) -> str:
    """Return a line for each alias."""
    if not aliases:
        return "no model has an alias; `preflight models promote JOB --as production` gives one"
    head = ("ALIAS", "JOB", "MODEL", "DATASET", "ACCURACY", "SHA-256", "SINCE", "BY")
    rows = [
        (
            alias.alias, now.job_id, now.model, now.dataset, _accuracy(now), now.model_sha256[:12], now.at[:19],
            printable(now.by),
        )
        for alias in aliases for now in (alias.current,)
    ]  # fmt: skip
    return columns([head, *rows])


def format_current(alias: Alias) -> str:
    """Return what an alias stands for now."""
    now = alias.current
    return (
        f"{alias.alias} is the {now.model} of job {now.job_id} ({_accuracy(now)} on {now.dataset}, sha256 "
        f"{now.model_sha256[:12]}), promotion {now.number}"
    )


def format_alias(alias: Alias, store: ModelStore) -> str:
    """Return an alias and its history, the newest first."""
    head = ("N", "ACTION", "JOB", "ACCURACY", "SHA-256", "AT", "BY", "KEPT", "WHY")
    rows = [
        (
            str(each.number), each.action, each.job_id, _accuracy(each), each.model_sha256[:12], each.at[:19],
            printable(each.by), "yes" if store.keeps(each) else "no", printable(each.why),
        )
        for each in reversed(alias.history)
    ]  # fmt: skip
    return f"{format_current(alias)}\nin {store.find(alias.alias).directory}\n\n{columns([head, *rows])}"


def as_row(alias: Alias) -> dict[str, JsonValue]:
    """Return what an alias stands for now, as JSON."""
    return {"alias": alias.alias, **_fields(alias.current)}


def as_object(alias: Alias, store: ModelStore) -> dict[str, JsonValue]:
    """Return an alias and its history, the newest first, as JSON."""
    history = [{**_fields(each), "kept": store.keeps(each)} for each in reversed(alias.history)]
    return {**as_row(alias), "directory": str(store.find(alias.alias).directory), "history": [*history]}


def _fields(promotion: Promotion) -> dict[str, JsonValue]:
    return {
        "number": promotion.number, "action": promotion.action, "at": promotion.at, "by": promotion.by,
        "why": promotion.why, "job_id": promotion.job_id, "model": promotion.model, "dataset": promotion.dataset,
        "test_accuracy": promotion.test_accuracy, "model_sha256": promotion.model_sha256,
    }  # fmt: skip


def _accuracy(promotion: Promotion) -> str:
    return "-" if promotion.test_accuracy is None else f"{promotion.test_accuracy:.2%}"
