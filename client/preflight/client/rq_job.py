"""RQ's job class without its check of the id, which refuses a dot; why a job failed, by RQ's record of it."""

import base64
import re
import zlib
from contextlib import suppress
from typing import Final

from redis import Redis
from redis.exceptions import RedisError
from rq.job import Job
from rq.serializers import Serializer

from preflight.redis import keys
from preflight.redis.replies import texts
from preflight.wire import MAX_TEXT_LENGTH

MAX_FAILURE_BYTES: Final = 64 * 1024
"""Unpacked, of which the last line is shown."""
REASON: Final = re.compile(r"[a-z_]{1,64}")
"""A reason in front of its message, as a worker records both with RQ."""


class AnyIdJob(Job):
    """A job with an unchecked id; `preflight.wire.is_job_id` checks it."""

    def __init__(
        self,
        id: str | None = None,
        connection: Redis | None = None,
        serializer: Serializer | str | None = None,
    ) -> None:
        super().__init__(None, connection=connection, serializer=serializer)
        self._id = id

    @property
    def id(self) -> str:
        """The job's id."""
        return self._id or super().id

    @id.setter
    def id(self, value: str) -> None:
        self._id = value


def stored_failure(redis: Redis, rq_id: str) -> dict[str, str]:
    """Return `reason` and `message` of a failed job by RQ's stream of results; empty where it holds none."""
    with suppress(RedisError, ValueError, UnicodeError, zlib.error):  # another type, no permission, not RQ's
        for _, fields in redis.xrevrange(keys.rq_results(rq_id), count=1) or []:
            packed = base64.b64decode(texts(fields or {}).get("exc_string", ""))
            said = zlib.decompressobj().decompress(packed, MAX_FAILURE_BYTES).decode(errors="replace").strip()
            reason, separator, message = said.partition(": ")
            if separator and REASON.fullmatch(reason):
                return {"reason": reason, "message": message[:MAX_TEXT_LENGTH]}
            return {"message": said.rpartition("\n")[2][:MAX_TEXT_LENGTH]} if said else {}
    return {}
