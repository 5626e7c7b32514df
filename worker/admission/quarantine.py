"""Quarantine: entries that cannot be jobs, taken out of the queue and listed with the reason."""

import hashlib
import time
from typing import Annotated, Final
from urllib.parse import quote, unquote_to_bytes

import structlog
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from redis import Redis
from rq import Queue
from rq.job import Job

from preflight.events.record import EVENT_RECORD
from preflight.events.state import event_record
from preflight.redis import keys
from preflight.redis.lua import run_script
from preflight.redis.replies import text
from preflight.redis.untrusted.values import Refused, as_json
from preflight.wire import EVENTS_KEPT, MAX_TEXT_LENGTH, STATE_TTL, JobFailed, Text, Timestamp

MAX_ENTRIES: Final = 10_000
"""Number of entries beyond which the oldest tenth is deleted."""
MAX_ID_BYTES: Final = 200
"""Longest id that is shown whole, in bytes; a longer one is shown by its beginning and its hash."""
CUT: Final = "*"
"""Marks a cut id; quote() escapes stars."""
EMPTY: Final = "(empty)"
"""Name of an id without characters; quote() escapes parentheses."""
PAGE: Final = 1000
"""Entries read at once."""
MAX_ENTRY_BYTES: Final = 1024
"""Longest id that a worker reads, and quarantines beyond 64 bytes; Redis itself quarantines a longer one."""
MAX_TAKEN: Final = 5000
"""Jobs of one queue that are looked at at once; as many run."""
MAX_STORED_BYTES: Final = 16 * 1024
"""Largest stored entry, in bytes; its reason has 2,000 characters."""
TAKEN: TypeAdapter[tuple[list[bytes], list[bytes], int]] = TypeAdapter(tuple[list[bytes], list[bytes], int])
SCANNED: TypeAdapter[tuple[int, dict[bytes, bytes]]] = TypeAdapter(tuple[int, dict[bytes, bytes]])
MOVED: TypeAdapter[tuple[int, bool]] = TypeAdapter(tuple[int, bool])


class QuarantineEntry(BaseModel):
    """Reason for which an entry is in quarantine."""

    model_config = ConfigDict(frozen=True)

    reason: Text
    at: Timestamp
    """Seconds since the epoch."""
    queue: Annotated[str, Field(max_length=256)]


def put(
    connection: Redis, queue: Queue, job_id: bytes | str, reason: str, *, ttl: int = STATE_TTL,
    failure: JobFailed | None = None,
) -> bool:  # fmt: skip
    """Move an id from a queue to quarantine and publish the job's failure, in one step.

    The job's hash is marked failed and kept for `ttl` seconds. Without `failure` nothing is published.

    Returns:
        False where another worker, or an earlier call, has moved it; then nothing is published again.

    Raises:
        redis.exceptions.RedisError: nothing has changed.
    """
    raw = _raw(job_id)
    entry = QuarantineEntry(reason=reason[:MAX_TEXT_LENGTH], at=time.time(), queue=queue.name[:256])
    job_keys = [] if failure is None else [key(failure.job_id) for key in (keys.events, keys.lifecycle, keys.state)]
    count, moved = run_script(
        connection, "maintenance/quarantine", MOVED,
        keys=[
            queue.intermediate_queue_key, queue.key, queue.started_job_registry.key, _job_key(raw), keys.QUARANTINE,
            keys.ended(queue.name), *job_keys, keys.TOTALS,
        ],
        args=[
            raw, name_of(raw), entry.model_dump_json(), ttl, EVENTS_KEPT,
            "" if failure is None else EVENT_RECORD.dump_json(event_record(failure), exclude_none=True),
        ],
    )  # fmt: skip
    if count > MAX_ENTRIES:
        connection.hdel(keys.QUARANTINE, *list(entries(connection))[: MAX_ENTRIES // 10])
    return moved


def read_taken(connection: Redis, queue: Queue) -> tuple[list[bytes], list[bytes]]:
    """Return the entries of the registry of started jobs, and of the list of those that were taken from the queue.

    Redis moves an entry too long for an id to quarantine: it may be larger than this process. Raises `RedisError`.
    """
    reason = f"it has more than {MAX_ENTRY_BYTES} bytes, but an id has at most 64"
    entry = QuarantineEntry(reason=reason, at=time.time(), queue=queue.name[:256])
    started, taken, removed = run_script(
        connection, "maintenance/taken", TAKEN,
        keys=[queue.started_job_registry.key, queue.intermediate_queue_key, keys.QUARANTINE],
        args=[MAX_ENTRY_BYTES, MAX_TAKEN, entry.model_dump_json(), STATE_TTL],
    )  # fmt: skip
    if removed:
        structlog.get_logger("preflight").error(
            "job_quarantined", message=f"{removed} entries of the queue are in quarantine: {reason}"
        )
    return started, taken


def entries(connection: Redis) -> dict[str, QuarantineEntry]:
    """Return the entries by name, oldest first; only a part of them where others have written too many."""
    found: dict[str, QuarantineEntry] = {}
    cursor = 0
    while len(found) < MAX_ENTRIES + PAGE:
        # Without a script, which a viewer may not run: the connection drops replies that are too large.
        cursor, page = SCANNED.validate_python(connection.hscan(keys.QUARANTINE, cursor, count=PAGE))
        found |= {text(name): _entry(text(stored)) for name, stored in page.items() if len(name) <= MAX_ENTRY_BYTES}
        if cursor == 0:
            break
    return dict(sorted(found.items(), key=lambda item: item[1].at))


def drop(connection: Redis, name: str) -> bool:
    """Delete an entry and the job's hash; returns whether there was such an entry."""
    if not connection.hdel(keys.QUARANTINE, name):
        return False
    if CUT not in name:
        key = _job_key(b"" if name == EMPTY else unquote_to_bytes(name))
        if text(connection.type(key)) == "hash":
            connection.unlink(key)
    return True


def drop_all(connection: Redis) -> int:
    """Delete every entry; returns their number."""
    return sum([drop(connection, name) for name in entries(connection)])


def name_of(job_id: bytes | str) -> str:
    """Return an id as it is listed: escaped, cut where it is long, `EMPTY` where it is empty."""
    raw = _raw(job_id)
    if not raw:
        return EMPTY
    if len(raw) <= MAX_ID_BYTES:
        return quote(raw, safe="")
    return f"{quote(raw[:64], safe='')}{CUT}{hashlib.sha256(raw).hexdigest()[:16]}"


def _raw(job_id: bytes | str) -> bytes:
    return job_id if isinstance(job_id, bytes) else job_id.encode(errors="surrogateescape")


def _job_key(raw: bytes) -> bytes:
    return Job.redis_job_namespace_prefix.encode() + raw


def _entry(stored: str) -> QuarantineEntry:
    try:
        return QuarantineEntry.model_validate(as_json(stored, MAX_STORED_BYTES))
    except (Refused, ValidationError):
        return QuarantineEntry(reason="this entry was not written by preflight", at=0, queue="")
