"""How long a list of jobs takes, whatever the registries hold: a real service and a real Redis of its own.

    python -m bench.listing

Each question is put to a queue of few jobs and to one of many, in turn. Between two questions is more than the half
second for which the service keeps a list, so that each answer is read from Redis.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final

from redis import Redis

from bench.tables import head, judged, row, spread
from bench.web import ask, service
from worker.broker import keys
from worker.wire import FUNCTION, STATE_TTL

QUEUE: Final = "preflight"
FEW: Final = 1000
MANY: Final = 100_000
BOUND: Final = 0.100
PAUSE: Final = 0.6
QUESTIONS: Final = {
    "/v1/jobs": BOUND, "/v1/jobs?status=queued": BOUND, "/v1/jobs?status=finished": BOUND,
    "/v1/jobs?status=failed&status=cancelled": BOUND, "/v1/jobs?limit=1000": None,
}  # fmt: skip
PLACES: Final = {"finished": 60, "failed": 20, "canceled": 10, "queued": 10}
"""RQ's word for a status -> percent of the jobs."""
AT_ONCE: Final = 1000
"""Jobs in one round trip while they are made."""


def fill(redis: Redis, count: int) -> None:
    """Make jobs, a second apart: RQ's hash and own state of each, and its entry where RQ would have it."""
    statuses = random.Random(0).choices(  # noqa: S311 - no secret
        list(PLACES), list(PLACES.values()), k=count
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


async def measure(rounds: int) -> None:
    """Fill two services, and ask them in turn."""
    async with AsyncExitStack() as stack:
        services = {count: await stack.enter_async_context(service()) for count in (FEW, MANY)}
        for count, running in services.items():
            fill(Redis.from_url(running.redis_url), count)
        taken: dict[tuple[str, int], list[float]] = {pair: [] for pair in itertools.product(QUESTIONS, services)}
        for number in range(rounds + 1):
            for path, count in taken:
                status, seconds = await ask(services[count].port, "GET", path)
                if status != 200:
                    raise SystemExit(f"GET {path} was answered {status}")
                if number:  # the first ones start threads
                    taken[path, count].append(seconds)
            await asyncio.sleep(PAUSE)
    head(f"median (range) of {rounds}", *(f"{count:,} jobs" for count in services), "bound", "")
    for path, bound in QUESTIONS.items():
        cells = [f"{spread([1e3 * seconds for seconds in taken[path, count]], '.1f')} ms" for count in services]
        reached = "" if bound is None else judged(statistics.median(taken[path, MANY]) <= bound)
        row(f"`GET {path}`", *cells, "" if bound is None else f"{1e3 * bound:.0f} ms", reached)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.listing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    asyncio.run(measure(parser.parse_args(arguments).rounds))


if __name__ == "__main__":
    main()
