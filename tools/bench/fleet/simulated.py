"""Simulated idle workers: the commands of a real one at its pace, over as many connections, without its memory.

    python -m tools.bench.fleet.simulated REDIS_SOCKET COUNT

They wait at a separate queue, so that the jobs go to real workers.
"""

import asyncio
import hashlib
import random
import secrets
import socket
import sys
import time
from collections.abc import Sequence

from rq import Queue

from preflight.redis import keys
from preflight.redis.lua import script_source
from preflight.redis.replies import as_date
from preflight.redis.retry import BASE_PAUSE_SECONDS, MAX_PAUSE_SECONDS, backoff
from tools.bench.fleet.real import QUEUE
from worker.queue.loop.key_existence import KeyExistence
from worker.queue.loop.maintainer import CLAIM_INTERVAL, MAINTAINERS, PLACE_SECONDS
from worker.queue.loop.presence import IDLE_HEARTBEAT_INTERVAL
from worker.queue.worker import BLMOVE_TIMEOUT, IDLE_STRETCH, WORKER_TTL

Reply = bytes | int | None


class ReplyError(Exception):
    """Redis answered with an error."""


class Connection:
    """A connection that speaks Redis's protocol, as far as these commands need it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def call(self, *parts: str | float) -> Reply:
        """Send a command and return its answer; of a list, its length."""
        encoded = [str(part).encode() for part in parts]
        self._writer.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in encoded))
        return await self._read()

    async def _read(self) -> Reply:
        line = await self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("Redis closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$" and int(rest) >= 0:
            return (await self._reader.readexactly(int(rest) + 2))[:-2]
        if kind == b"*" and int(rest) >= 0:
            for _ in range(int(rest)):
                await self._read()
        if kind == b"-":
            raise ReplyError(rest.decode())
        return int(rest) if kind in b":*" else None if kind == b"$" else rest

    def close(self) -> None:
        self._writer.close()


class IdleWorker:
    """One simulated worker."""

    def __init__(self, path: str, host: str) -> None:
        """Send commands to the Redis at `path` in the name of a worker on `host`."""
        self._path = path
        self._host = host
        self._name = f"{host}.0.{secrets.token_hex(4)}"
        self._key = keys.rq_worker(self._name)
        self._places = [keys.maintainer(QUEUE, True, number) for number in range(MAINTAINERS)]
        self._existence = KeyExistence([self._key, keys.RQ_SUSPENDED], self._places)
        self._next_heartbeat = 0.0
        self._next_claim = _after(CLAIM_INTERVAL)

    async def run(self) -> None:
        """Wait for jobs for ever; reconnect as a worker does."""
        pauses = backoff(BASE_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            opened: list[Connection] = []
            try:
                for _ in range(2):
                    opened.append(Connection(*await asyncio.open_unix_connection(self._path)))
                await opened[1].call("SUBSCRIBE", f"rq:pubsub:{self._name}")
                while True:
                    await self._turn(opened[0])
                    pauses = backoff(BASE_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
            except (OSError, EOFError, ReplyError):  # also while it loads its data
                for connection in opened:
                    connection.close()
                await asyncio.sleep(next(pauses))

    async def _turn(self, redis: Connection) -> None:
        count = await redis.call("EXISTS", *self._existence.names)
        registered = self._existence.read(count if isinstance(count, int) else 0)[0][0]
        now = time.monotonic()
        if not registered:
            await redis.call("HSET", self._key, "state", "idle", "hostname", self._host, "birth", as_date(time.time()))
            await redis.call("SADD", f"rq:workers:{QUEUE}", self._key)
        if now >= self._next_heartbeat:
            await redis.call("HSET", self._key, "last_heartbeat", as_date(time.time()))
            await redis.call("EXPIRE", self._key, WORKER_TTL + 60)
            self._next_heartbeat = _after(IDLE_HEARTBEAT_INTERVAL)
        if now >= self._next_claim:
            arguments = (self._name, self._host, int(1000 * PLACE_SECONDS))
            await self._claim(redis, *self._places, *arguments)
            self._next_claim = _after(CLAIM_INTERVAL)
        queue = Queue.redis_queue_namespace_prefix + f"{QUEUE}-simulated"
        timeout = BLMOVE_TIMEOUT * random.uniform(*IDLE_STRETCH)  # noqa: S311
        await redis.call("BLMOVE", queue, f"{queue}:intermediate", "LEFT", "RIGHT", timeout)

    async def _claim(self, redis: Connection, *parts: str | int) -> None:
        script = script_source("maintenance/take_place")
        try:
            await redis.call(
                "EVALSHA", hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest(), MAINTAINERS, *parts
            )
        except ReplyError:  # Redis was started again
            await redis.call("EVAL", script, MAINTAINERS, *parts)


def _after(seconds: float) -> float:
    return time.monotonic() + random.uniform(0.8, 1.2) * seconds  # noqa: S311 - as a worker does


async def main(arguments: Sequence[str]) -> None:
    """Run all of them, started within the time of one turn."""
    path, count = arguments
    async with asyncio.TaskGroup() as group:
        for _ in range(int(count)):
            group.create_task(IdleWorker(path, socket.gethostname()).run())
            await asyncio.sleep(BLMOVE_TIMEOUT / int(count))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
