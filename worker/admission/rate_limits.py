"""Rate limits of RQ 3: each lets a number of jobs be queued or run at a time, and holds back the others."""

import time
from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter
from redis import Redis

from preflight.queue.options import MAX_RATE_LIMIT_BYTES
from preflight.redis import keys
from preflight.redis.lua import run_script
from preflight.redis.replies import as_date
from preflight.redis.untrusted.reads import read_page

MOST: Final = 1000
"""Most jobs of a limit, and most limits, in one step."""
COUNT = TypeAdapter(int)


def fill_rate_limit(connection: Redis, name: bytes | str) -> None:
    """Give the free slots of a rate limit to waiting jobs; raises `redis.exceptions.RedisError`."""
    raw = name if isinstance(name, bytes) else name.encode(errors="surrogateescape")
    key = keys.rq_rate_limit("").encode() + raw
    run_script(
        connection, "scheduling/fill_rate_limit", COUNT,
        keys=[key + b":allowed", key + b":rate_limited", key, keys.RQ_RATE_LIMITS],
        args=[raw, as_date(time.time()), MOST],
    )  # fmt: skip


def rate_limits(connection: Redis) -> Sequence[bytes]:
    """Return the names of the rate limits, a page of them; raises `redis.exceptions.RedisError`."""
    return read_page(connection, keys.RQ_RATE_LIMITS, 0, MOST, name_bytes=MAX_RATE_LIMIT_BYTES).names
