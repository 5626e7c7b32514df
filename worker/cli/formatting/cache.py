"""Table and JSON of `preflight cache list`."""

import json
from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from calibration.cache.plan_cache import Listed
from preflight.cli.formatting.text import columns
from preflight.events.plan_words import plan_line
from preflight.numbers import format_age
from worker.cli.formatting.plans import PLAN

KEY_LENGTH: Final = 12
"""Characters of a key in the table: enough to tell thousands apart."""


def cache_table(entries: Sequence[Listed]) -> str:
    """Return the plan cache as aligned columns."""
    if not entries:
        return "no plans"
    head = ("KEY", "DATASET", "MODEL", "BATCH", "S/EPOCH", "CONFIDENCE", "AGE", "EXPIRES IN", "PLAN")
    return columns([head, *map(_row, entries)])


def _row(entry: Listed) -> tuple[str, ...]:
    key, cached = ascii(entry.key[:KEY_LENGTH])[1:-1], entry.plan
    if cached is None:
        return (key, "", "", "", "", "", "", "", f"unusable: it {entry.fault}")
    what = (ascii(str(cached.what.get(name)))[1:-1] for name in ("dataset", "model", "batch_size"))
    return (
        key, *what, f"{cached.finding.prediction.epoch_s:.2f}", cached.finding.confidence, format_age(cached.age_s),
        "expired" if cached.expired else format_age(cached.lasts_s - cached.age_s), plan_line(cached.finding.plan),
    )  # fmt: skip


def cached_as_json(entry: Listed) -> str:
    """Return an entry of the plan cache as one JSON object, without its trials."""
    fields: dict[str, JsonValue] = {"key": entry.key, "path": str(entry.path), "fault": entry.fault}
    cached = entry.plan
    if cached is not None:
        fields |= {
            **cached.what,
            "plan": PLAN.dump_python(cached.finding.plan, mode="json"),
            "predicted_epoch_s": cached.finding.prediction.epoch_s,
            "confidence": cached.finding.confidence,
            "age_s": cached.age_s,
            "expires_in_s": max(0.0, cached.lasts_s - cached.age_s),
            "expired": cached.expired,
        }
    return json.dumps(fields)
