"""How long a list of jobs takes, whatever the registries hold: a real service and a real Redis of its own.

    python -m bench.listing

The same questions are put to a queue of few jobs and to one of many, in turn. Between two questions is more than the
half second for which the service keeps a list, so that each answer is read from Redis.
"""

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final

from redis import Redis

from bench.tables import head, judged, row, spread
from bench.web import Service, ask, service
from worker import keys
from worker.wire import FUNCTION, STATE_TTL

FEW: Final = 100
MANY: Final = 100_000
BOUND: Final = 0.100
PAUSE: Final = 0.6
QUESTIONS: Final = {
    "all": "/v1/jobs", "waiting": "/v1/jobs?status=queued", "finished": "/v1/jobs?status=finished",
    "failed or cancelled": "/v1/jobs?status=failed&status=cancelled", "all, limit 1000": "/v1/jobs?limit=1000",
}  # fmt: skip
SHARES: Final = {"finished": 0.6, "failed": 0.2, "canceled": 0.1, "queued": 0.1}
"""Where the jobs stand: RQ's word -> share of all."""
OURS: Final = {"finished": "finished", "failed": "failed", "canceled": "cancelled"}
AT_ONCE: Final = 2000
"""Jobs in one round trip while they are made."""


def fill(redis: Redis, queue: str, count: int) -> None:
    """Put `count` jobs into a queue and its registries, each with RQ's hash and its own state, a second apart."""
    for some in itertools.batched(_jobs(count), AT_ONCE):
        pipe = redis.pipeline(transaction=False)
        for job_id, status, at in some:
            stamp = datetime.fromtimestamp(at, timezone.utc).isoformat()
            pipe.hset(f"rq:job:{job_id}", mapping=_hash(job_id, status, queue, stamp))
            if status == "queued":
                pipe.rpush(f"rq:queue:{queue}", job_id)
            else:
                pipe.zadd(f"rq:{status}:{queue}", {job_id: at if status == "canceled" else at + STATE_TTL})
                pipe.hset(keys.state(job_id), mapping=_state(status, at))
        pipe.execute()
