"""Many jobs in RQ's registries, as the service leaves them."""

import itertools
import random
import time
from datetime import UTC, datetime
from typing import Final

from redis import Redis

from preflight.redis import keys
from preflight.wire import FUNCTION, STATE_TTL

QUEUE: Final = "preflight"
STATUSES: Final = {"finished": 60, "failed": 20, "canceled": 10, "queued": 10}
"""RQ's name of a status -> percent of the jobs."""
AT_ONCE: Final = 1000
"""Jobs in one round trip while they are made."""


def fill(redis: Redis, count: int) -> None:
    """Make jobs, a second apart: RQ's hash and own state of each, and its entry where RQ would have it."""
    statuses = random.Random(0).choices(  # noqa: S311 - no secret
        list(STATUSES), list(STATUSES.values()), k=count
    )
    jobs = zip(itertools.count(int(time.time()) - count), statuses, strict=False)
    while some := list(itertools.islice(jobs, AT_ONCE)):
        pipe = redis.pipeline(transaction=False)
        for at, status in some:
            job_id, stamp = f"job-{at}", datetime.fromtimestamp(at, UTC).isoformat()
            pipe.hset(
                f"rq:job:{job_id}",
                mapping={
                    "status": status, "created_at": stamp, "enqueued_at": stamp, "origin": QUEUE, "timeout": 21_600,
                    "description": job_id, "data": f'["{FUNCTION}", null, [{{"dataset": "mnist"}}], {{}}]',
                },
            )  # fmt: skip
            if status == "queued":
                pipe.rpush(f"rq:queue:{QUEUE}", job_id)
                continue
            pipe.zadd(f"rq:{status}:{QUEUE}", {job_id: at + (0 if status == "canceled" else STATE_TTL)})
            pipe.hset(
                keys.state(job_id),
                mapping={
                    "status": "cancelled" if status == "canceled" else status, "attempt": 1, "started_at": at - 60,
                    "updated_at": at, "worker": "host.1.abcdef01", "dataset": "mnist", "model": "cnn", "epoch": 3,
                    "epochs": 3, "loss": 0.05, "val_acc": 0.99, "samples_per_s": 10_000, "memory_mb": 512,
                    "test_accuracy": 0.99, "artifact": f"/data/artifacts/{job_id}",
                },
            )  # fmt: skip
        pipe.execute()
