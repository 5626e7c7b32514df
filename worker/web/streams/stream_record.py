"""Stream records: their ids, and the events in them as server-sent events."""

import json
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue, TypeAdapter
from redis.asyncio import Redis
from redis.exceptions import RedisError

from preflight.client.results import MAX_EVENT_FIELDS
from preflight.contract.plan import words
from preflight.events.phrases import STAGES, phrases
from preflight.events.plan_words import mentioned, plan_words
from preflight.events.sentences import sentence
from preflight.redis import keys
from preflight.redis.replies import texts
from preflight.redis.retry import is_wrong_type
from preflight.redis.untrusted.bounded_replies import OversizedReply
from preflight.wire import (
    EXTRA_EVENTS,
    STATUS_BY_EVENT,
    TERMINAL_EVENTS,
    AnyEvent,
    PlanAdapted,
    PlanFields,
    Progress,
    unflatten,
)

RecordId = tuple[int, int]
"""Id of a stream record: milliseconds and sequence number."""
MIN_ID: Final[RecordId] = (0, 0)
"""Id before all records."""
MAX_ID: Final[RecordId] = (2**64 - 1, 2**64 - 1)
"""Redis refuses a range that begins after it."""

RawRecords = list[tuple[bytes, dict[bytes, bytes]]]
"""Records of one stream as redis-py returns them: id and fields."""
RAW_RECORDS: Final = TypeAdapter(RawRecords)


class UnreadableStream(Exception):
    """The key of a job's events is no stream, or one whose records are too large."""

    reason: Final = "unreadable_events"

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"the Redis key {keys.events(job_id)!r} is no stream, or its records have too many fields, so no events "
            "can be read; remove the key"
        )


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """An event of a job, encoded as a server-sent event."""

    id: RecordId
    type: str
    number: tuple[int, int]
    """Attempt and sequence number of the event."""
    text: bytes
    is_terminal: bool
    """Whether it ends an attempt, or follows such an event."""
    used_memory_mib: int = 0
    """Memory in use of the container, in MiB, where the event is one of progress; else 0."""


def parse_records(raw: RawRecords) -> list[StreamRecord]:
    """Return the records that are events; others, e.g. of a newer version, are skipped."""
    return [record for record_id, fields in raw if (record := _readable(record_id.decode(), fields)) is not None]


def _readable(record_id: str, fields: dict[bytes, bytes]) -> StreamRecord | None:
    """Return the event in a record; None for anything else."""
    if len(fields) > MAX_EVENT_FIELDS:
        return None
    try:
        return _parse(record_id, fields)
    except Exception:  # ValidationError, RecursionError, MemoryError: whatever the record holds, it is no event
        return None


def _parse(record_id: str, fields: dict[bytes, bytes]) -> StreamRecord:
    event = unflatten(texts(fields))
    data = event.model_dump_json(exclude_none=True)
    return StreamRecord(
        id=parse_id(record_id),
        type=event.type,
        number=(event.attempt, event.seq),
        text=f"id: {record_id}\nevent: {event.type}\n{_spoken(event)}data: {data}\n\n".encode(),
        is_terminal=event.type in (*TERMINAL_EVENTS, *EXTRA_EVENTS),
        used_memory_mib=(event.used_memory_mib or 0) if isinstance(event, Progress) else 0,
    )


def _spoken(event: AnyEvent) -> str:
    """Return the lines of an event in words, which EventSource ignores; progress, the bulk of all events, has none."""
    if event.type == "progress":
        return ""
    lines = [
        ("text", sentence(event)), ("status", STATUS_BY_EVENT.get(event.type)), ("stage", STAGES.get(event.type)),
        ("plan", _plan_words(event)), ("phrases", phrases(event)),
    ]  # fmt: skip
    shown = ((name, found if isinstance(found, str) else json.dumps(found)) for name, found in lines if found)
    return "".join(f"{name}: {text}\n" for name, text in shown)


def _plan_words(event: AnyEvent) -> dict[str, JsonValue]:
    """Return the words of an event's plan, and the fields of its sentence; of a change of the plan its words."""
    match event:
        case PlanFields():
            return {"words": {**plan_words(event)}, "mentioned": [*mentioned(event)]}
        case PlanAdapted():
            return {"words": {event.field: words(event.field).of(event.after)}}
    return {}


def parse_id(text: str) -> RecordId:
    """Return a record id as numbers; `MIN_ID` for an invalid one."""
    milliseconds, _, number = text.partition("-")
    if not _is_number(milliseconds):
        return MIN_ID
    record_id = int(milliseconds), int(number) if _is_number(number) else 0
    return record_id if max(record_id) <= max(MAX_ID) else MIN_ID


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


def format_id(record_id: RecordId) -> str:
    """Return a record id as Redis writes it."""
    return f"{record_id[0]}-{record_id[1]}"


async def newest_record(redis: Redis, job_id: str) -> RawRecords:
    """Return the last record of a job's stream, if there is one; raises `UnreadableStream`, `RedisError`."""
    try:
        return RAW_RECORDS.validate_python(await redis.xrevrange(keys.events(job_id), count=1) or [])
    except RedisError as error:
        if is_unreadable(error):
            raise UnreadableStream(job_id) from error
        raise


def is_unreadable(error: RedisError) -> bool:
    """Whether a key itself is the reason for an error, which will not pass."""
    return is_wrong_type(error) or isinstance(error, OversizedReply)
