"""Event record: an event as the scripts publish it to stream and state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """One event as it is published."""

    attempt: int
    seq: int
    fields: Sequence[str]
    """Names and values of the stream record, in turn."""
    state: Sequence[str]
    """Names and values for the state hash, in turn."""
    lifecycle: bool
    first: bool
    """Whether the state hash is emptied first."""
    result: str | None
    """The job's result, which is stored with this event."""
    failure: str | None
    """The event that ends a failed attempt, as JSON, until its end is recorded with RQ."""
    meta: str | None
    """New value of RQ's `job.meta`."""
    totals: Mapping[str, float]
    """Counter of all jobs -> amount that the event adds."""


EVENT_RECORD = TypeAdapter(EventRecord)
