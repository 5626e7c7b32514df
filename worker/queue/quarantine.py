"""What cannot be a job is taken out of the queue and remembered here, with the reason; nothing of it is run."""

import hashlib
import time
from typing import Annotated, Final
from urllib.parse import quote, unquote_to_bytes

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from redis import Redis
from rq import Queue
from rq.job import Job

from worker.broker import keys
from worker.broker.fencing import script
from worker.broker.replies import text
from worker.wire import LONGEST_TEXT, STATE_TTL, Seconds, Text

MOST: Final = 10_000
"""Entries that are kept; with one more, the oldest tenth goes."""
LONGEST_ID: Final = 200
"""Bytes of an id that are kept; a longer one goes by its beginning and its hash."""
CUT: Final = "*"
"""Stands where an id was cut; quote() leaves no star of its own."""
PAGE: Final = 1000
"""Entries read at once."""


class Entry(BaseModel):
    """Why something was taken out."""

    model_config = ConfigDict(frozen=True)

    reason: Text
    at: Seconds
    """Seconds since the epoch."""
    queue: Annotated[str, Field(max_length=256)]


def put(connection: Redis, queue: Queue, job_id: bytes | str, reason: str, *, ttl: int = STATE_TTL) -> str:
    """Take an id out of a queue for good, and remember it; returns the name under which it is remembered.

    The job's hash stays as evidence, marked failed.

    Args:
        connection: where.
        queue: from which it was taken.
        job_id: as it stands in the queue, whatever that is.
        reason: one sentence.
        ttl: seconds for which the hash is kept.

    Raises:
        redis.exceptions.RedisError: Redis did not take it; nothing has changed.
    """
    raw = job_id if isinstance(job_id, bytes) else job_id.encode(errors="surrogateescape")
    name = _name(raw)
    entry = Entry(reason=reason[:LONGEST_TEXT], at=time.time(), queue=queue.name[:256])
    count = connection.register_script(script("maintenance/quarantine"))(
        keys=[
            queue.intermediate_queue_key, queue.key, queue.started_job_registry.key, _job_key(raw), keys.QUARANTINE,
        ],
        args=[raw, name, entry.model_dump_json(), ttl],
    )  # fmt: skip
    if count > MOST:
        connection.hdel(keys.QUARANTINE, *list(entries(connection))[: MOST // 10])
    return name


def entries(connection: Redis) -> dict[str, Entry]:
    """Return what is in quarantine by its name, oldest first."""
    found = {text(name): _entry(text(stored)) for name, stored in connection.hscan_iter(keys.QUARANTINE, count=PAGE)}
    return dict(sorted(found.items(), key=lambda item: item[1].at))


def drop(connection: Redis, name: str) -> bool:
    """Forget an entry and delete the job's hash, if it left one; returns whether there was such an entry."""
    if not connection.hdel(keys.QUARANTINE, name):
        return False
    if CUT not in name:
        key = _job_key(unquote_to_bytes(name))
        if text(connection.type(key)) == "hash":
            connection.unlink(key)
    return True


def drop_all(connection: Redis) -> int:
    """Forget every entry and return how many there were."""
    return sum([drop(connection, name) for name in entries(connection)])


def printable(text: str) -> str:
    """Return `text` on one line, what a terminal would act on escaped."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def _name(raw: bytes) -> str:
    """Return an id as it is remembered and shown: itself when it is an ordinary one, else escaped and cut."""
    if len(raw) <= LONGEST_ID:
        return quote(raw, safe="")
    return f"{quote(raw[:64], safe='')}{CUT}{hashlib.sha256(raw).hexdigest()[:16]}"


def _job_key(raw: bytes) -> bytes:
    return Job.redis_job_namespace_prefix.encode() + raw


def _entry(stored: str) -> Entry:
    try:
        return Entry.model_validate_json(stored)
    except ValidationError:
        return Entry(reason="this entry was not written by preflight", at=0, queue="")
