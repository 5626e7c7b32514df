"""RQ's `job.meta`: the latest values of a job's events next to the producer's entries, for RQ's tools."""

import json
from collections.abc import Mapping
from typing import Final

import structlog
from pydantic import JsonValue

from preflight.events.state import latest_fields
from preflight.wire import STATUS_BY_EVENT, AnyEvent, JobState

MAX_META_LENGTH: Final = 16 * 1024
"""Characters of the producer's `meta` as JSON; RQ's `meta` is one field, rewritten with every event."""


class RqMeta:
    """`job.meta` of an attempt."""

    def __init__(self, meta: Mapping[str, JsonValue]) -> None:
        """Start with the producer's `meta`; one longer than `MAX_META_LENGTH` is dropped."""
        fits = len(json.dumps(meta)) <= MAX_META_LENGTH
        self._meta = dict(meta) if fits else {}
        if not fits:
            structlog.get_logger("preflight").warning(
                "meta_dropped", message=f"the job's meta has more than {MAX_META_LENGTH} characters as JSON"
            )

    def update(self, event: AnyEvent) -> str:
        """Add an event; returns `meta` as JSON."""
        fields = event.model_dump(mode="json", exclude={"v", "seq", "job_id", "ts", "type"}, exclude_none=True)
        if event.type == "job_started":  # drop the values of earlier attempts
            self._meta = {name: value for name, value in self._meta.items() if name not in JobState.model_fields}
        self._meta.update(latest_fields(event, fields))
        if event.type in STATUS_BY_EVENT:
            self._meta["status"] = STATUS_BY_EVENT[event.type]
        return json.dumps(self._meta)
