"""Latency of job lists with few and with many jobs in the registries: a real service and a real Redis.

    python -m tools.bench.listing

Each question is put to a queue of few jobs and to one of many, in turn. Between two questions is more than the half
second for which the service keeps a list, so that each answer is read from Redis.
"""

import argparse
import asyncio
import http.client
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from typing import Final

from redis import Redis
from support.redis.listed_jobs import fill
from support.web.crowd import ask

from tools.bench.record import judged, samples, start
from tools.bench.web import service

FEW: Final = 1000
MANY: Final = 100_000
BOUND: Final = 0.100
PAUSE: Final = 0.6
QUESTIONS: Final = {
    "/v1/jobs": BOUND, "/v1/jobs?status=queued": BOUND, "/v1/jobs?status=finished": BOUND,
    "/v1/jobs?status=failed&status=cancelled": BOUND, "/v1/jobs?limit=1000": None,
    "/v1/search": BOUND, "/v1/search?status=finished&sort=-accuracy": BOUND,
    "/v1/search?q=model:cnn+accuracy%3E0.5": BOUND, "/v1/search?offset=99000&sort=took": BOUND,
}  # fmt: skip


def wait_for_index(port: int) -> None:
    """Wait until the service has read every job."""
    complete = False
    while not complete:
        time.sleep(PAUSE)
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("GET", "/v1/search?limit=1")
            complete = json.load(connection.getresponse())["complete"]


async def measure(rounds: int) -> None:
    """Fill two services, and ask them in turn."""
    async with AsyncExitStack() as stack:
        services = {count: await stack.enter_async_context(service()) for count in (FEW, MANY)}
        for count, running in services.items():
            fill(Redis.from_url(running.redis_url), count)
            await asyncio.to_thread(wait_for_index, running.port)
        taken: dict[tuple[str, int], list[float]] = {pair: [] for pair in itertools.product(QUESTIONS, services)}
        for number in range(rounds + 1):
            for path, count in taken:
                status, seconds = await ask(services[count].port, "GET", path)
                if status != 200:
                    raise SystemExit(f"GET {path} was answered {status}")
                if number:  # the first ones start threads
                    taken[path, count].append(seconds)
            await asyncio.sleep(PAUSE)
    record = start(
        "listing", f"python -m tools.bench.listing --rounds {rounds}", "a network between client and service"
    )
    record.head(f"median (range) of {rounds}", *(f"{count:,} jobs" for count in services), "bound", "")
    for path, bound in QUESTIONS.items():
        cells = [samples([1e3 * seconds for seconds in taken[path, count]], ".1f", " ms") for count in services]
        reached = "" if bound is None else judged(statistics.median(taken[path, MANY]) <= bound)
        record.row(f"`GET {path}`", *cells, "" if bound is None else f"{1e3 * bound:.0f} ms", reached)
    record.write()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.listing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    asyncio.run(measure(parser.parse_args(arguments).rounds))


if __name__ == "__main__":
    main()
