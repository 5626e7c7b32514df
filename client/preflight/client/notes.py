"""Notes and tags that people give a job: stored next to its state; each user with write access may change them."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, Field, ValidationError, field_validator
from redis import Redis
from redis.exceptions import NoPermissionError

from preflight.redis import keys
from preflight.redis.replies import text
from preflight.wire import JobId
from preflight.wire.base import Wire
from preflight.wire.validation_errors import to_invalid_config

MAX_NOTE: Final = 4000
"""Most characters of a note."""
MAX_TAGS: Final = 20
MAX_TAG: Final = 40
"""Most characters of a tag."""
KEPT_SECONDS: Final = 30 * 86_400
"""Seconds for which notes and tags are kept after their last change."""

TAG_PATTERN: Final = rf'^[^\s,"\x00-\x1f\x7f-\x9f\ufeff]{{1,{MAX_TAG}}}$'
"""Pattern of a tag; where \\s differs between Python and JavaScript (JSON Schema), it names the characters."""


def _check_tag(value: str) -> str:
    if re.fullmatch(TAG_PATTERN[1:-1], value) is None:
        raise ValueError(f"a tag has 1 to {MAX_TAG} characters, none of them a space, comma or quotation mark")
    return value


Tag = Annotated[str, AfterValidator(_check_tag), Field(json_schema_extra={"pattern": TAG_PATTERN})]


class Notes(Wire):
    """A job's note and its tags."""

    note: Annotated[str, Field(max_length=MAX_NOTE)] = ""
    tags: Annotated[tuple[Tag, ...], Field(max_length=MAX_TAGS)] = ()
    """Each once, without spaces or commas."""

    @field_validator("tags")
    @classmethod
    def _once(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(tags))


def read_notes(redis: Redis, job_ids: Sequence[str]) -> Mapping[str, Notes]:
    """Return job id -> notes, for jobs that have any; invalid ones are left out. Raises `RedisError`."""
    pipe = redis.pipeline(transaction=False)
    for job_id in job_ids:
        pipe.hmget(keys.notes(job_id), "note", "tags")
    replies: list[object] = pipe.execute(raise_on_error=False) if job_ids else []
    found = zip(job_ids, map(_notes, replies), strict=True)
    return {job_id: notes for job_id, notes in found if notes is not None}


def write_notes(redis: Redis, job_id: JobId, given: Mapping[str, object]) -> Notes:
    """Change the fields that are given, `note` or `tags`, and return both as they are then.

    Raises:
        InvalidConfig: there are too many tags, or a text is too long.
        redis.exceptions.RedisError: Redis did not take it.
    """
    before = read_notes(redis, [job_id]).get(job_id, Notes())
    try:
        notes = Notes.model_validate({**before.model_dump(), **given})
    except ValidationError as error:
        raise to_invalid_config(error, Notes.model_json_schema()) from error
    pipe = redis.pipeline(transaction=True)
    pipe.hset(keys.notes(job_id), mapping={"note": notes.note, "tags": json.dumps(notes.tags), "at": time.time()})
    pipe.expire(keys.notes(job_id), KEPT_SECONDS)
    pipe.execute()
    return notes


def _notes(reply: object) -> Notes | None:
    """Return the notes in a reply to HMGET; None for an empty one, for a key of another type, and for invalid notes."""
    if isinstance(reply, NoPermissionError):
        raise reply
    if not isinstance(reply, list) or len(reply) != 2 or reply == [None, None]:
        return None
    note, tags = reply
    try:
        return Notes.model_validate({"note": text(note or ""), "tags": json.loads(text(tags or "[]"))})
    except (ValidationError, ValueError, RecursionError):
        return None
