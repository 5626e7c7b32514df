"""A crowd for `preflight serve`: idle connections, jobs with many events, a long list."""

import asyncio
import time
from typing import Final

from redis import Redis

from preflight.redis import keys
from preflight.wire import EVENTS_KEPT, STATE_TTL, Progress, flatten

IDLE: Final = 1000
"""Connections without a request."""
JOBS: Final = 200
"""Jobs watched at once, each with as many events as are kept."""
LISTED: Final = 100_000
"""Finished jobs that are still listed."""
MEMORY_BOUND: Final = 256 << 20
ADD_EVENTS: Final = "for n = 1, tonumber(ARGV[1]) do redis.call('XADD', KEYS[1], n .. '-0', unpack(ARGV, 2)) end"
"""Script that adds one event that many times."""


def fill(redis: Redis) -> None:
    """Write `LISTED` jobs that have ended, of which `JOBS` have many events."""
    now = time.time()
    for first in range(0, LISTED, 5000):
        pipe = redis.pipeline(transaction=False)
        for number in range(first, first + 5000):
            job_id = f"job-{number}"
            pipe.zadd("rq:finished:preflight", {job_id: now + STATE_TTL + number})
            pipe.hset(f"rq:job:{job_id}", mapping={"status": "finished", "enqueued_at": "2026-01-01T00:00:00Z"})
            state: dict[str, str | float] = {
                "status": "finished", "updated_at": now + number, "dataset": "mnist", "model": "cnn"
            }  # fmt: skip
            pipe.hset(keys.state(job_id), mapping=dict(state.items()))
        pipe.execute()
    for number in range(JOBS):
        event = Progress(
            seq=1, job_id=f"job-{number}", attempt=1, ts=now, epoch=1, epochs=1, step=1, steps=EVENTS_KEPT, loss=0.5,
            accuracy=0.5, samples_per_s=10_000, eta_s=10, used_memory_mib=512,
        )  # fmt: skip
        fields = [part for pair in flatten(event).items() for part in pair]
        redis.eval(ADD_EVENTS, 1, keys.events(event.job_id), EVENTS_KEPT, *fields)


async def ask(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, float]:
    """Return status and seconds of one request over a separate connection."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    kind = "content-type: application/json\r\n" if body else ""
    writer.write(
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{kind}content-length: {len(body)}\r\n"
        "connection: close\r\n\r\n".encode() + body
    )  # fmt: skip
    status = int((await reader.readline()).split()[1])
    await reader.read()
    writer.close()
    return status, time.perf_counter() - began


async def crowd(port: int) -> list[int]:
    """Hold `IDLE` connections, list jobs, and follow each of `JOBS`; return how many events each viewer was sent."""
    idle = [asyncio.create_task(stay(port)) for _ in range(IDLE)]
    following = [asyncio.create_task(follow(port, f"job-{number}")) for number in range(JOBS)]
    while not all(task.done() for task in following):
        status, _ = await ask(port, "GET", "/v1/jobs?limit=1000")
        if status != 200:
            raise SystemExit(f"the list was refused: {status}")
        await asyncio.sleep(2)
    for task in idle:
        task.cancel()
    return [task.result() for task in following]


async def stay(port: int) -> None:
    """Hold a connection without a request; open another one when the service closes it."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.read()
        writer.close()


async def follow(port: int, job_id: str) -> int:
    """Follow a job from its first event to its end; return how many there were."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    heard = 0
    while (line := await reader.readline()) not in (b"", b"event: end\n"):
        heard += line == b"event: progress\n"
    writer.close()
    return heard
