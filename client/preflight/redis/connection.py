"""Clients of Redis: each finds the primary, and keeps no more of a reply than it should have."""

from typing import Final

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from preflight.redis.primary import AsyncPrimaryPool, NotPrimary, PrimaryPool
from preflight.redis.untrusted.bounded_connection import PROTOCOL, AsyncBoundedParser, BoundedParser

SOCKET_TIMEOUT: Final = 5
"""Longest wait for an answer, in seconds; longer than any command blocks."""
GLANCE_TIMEOUT: Final = 1
"""The same in a service that starts without Redis, too, and in a worker that ends while Redis is away."""
RETRY_BASE: Final = 0.05
RETRY_CAP: Final = 1.0
"""Seconds before a command that a replica refused is repeated: twice the first value, then doubled up to the second."""
PATIENCE: Final = 5
"""Repetitions by a client whose caller does not repeat failed commands; they take 2.5 s."""
REPLICA_SECONDS: Final = 1.0
"""Longest wait for a replica to receive written data, in seconds."""


def open_redis(
    url: str, *, seconds: float = SOCKET_TIMEOUT, connect_seconds: float = SOCKET_TIMEOUT, retries: int = 0
) -> Redis:
    """Return a client of the primary at `url`; it connects when it is used, and keeps no more than `Limits` of a reply.

    Args:
        url: redis://, rediss:// or unix://.
        seconds: longest wait for each answer.
        connect_seconds: the same for a connection.
        retries: how often a command is repeated that a replica has refused, with growing pauses; nothing else is
            repeated, so that no command is carried out twice.

    Raises:
        ValueError: the URL is none of Redis.
    """
    return Redis.from_pool(
        PrimaryPool.at(
            url, socket_timeout=seconds, socket_connect_timeout=connect_seconds, parser_class=BoundedParser,
            protocol=PROTOCOL, retry=Retry(ExponentialBackoff(cap=RETRY_CAP, base=RETRY_BASE), retries, (NotPrimary,)),
        )
    )  # fmt: skip


def open_async_redis(url: str, *, retries: int = 0) -> AsyncRedis:
    """Return a client for asyncio, as `open_redis`."""
    return AsyncRedis.from_pool(
        AsyncPrimaryPool.at(
            url, socket_timeout=SOCKET_TIMEOUT, socket_connect_timeout=SOCKET_TIMEOUT,
            parser_class=AsyncBoundedParser, protocol=PROTOCOL,
            retry=AsyncRetry(ExponentialBackoff(cap=RETRY_CAP, base=RETRY_BASE), retries, (NotPrimary,)),
        )
    )  # fmt: skip


def shorten_waits(connection: Redis) -> None:
    """Have each command from now on wait `GLANCE_TIMEOUT` for its answer: for a process that is about to end."""
    pool = connection.connection_pool
    pool.connection_kwargs.update(socket_connect_timeout=GLANCE_TIMEOUT, socket_timeout=GLANCE_TIMEOUT)
    pool.disconnect()
    pool.reset()  # connections that were made keep their timeouts


def is_replicated(connection: Redis) -> bool:
    """Whether data written by `connection` is safe from a failover: a replica has it, or there is none.

    Waits for `REPLICA_SECONDS`. Where this user may not ask, it counts as safe.
    """
    try:
        replicas = connection.info("replication").get("connected_slaves")
        return not replicas or connection.wait(1, int(1000 * REPLICA_SECONDS)) > 0
    except ResponseError:
        return True
    except RedisError:
        return False
