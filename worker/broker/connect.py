"""First contact with Redis: wait until it answers, then check its version, its mode and its clock."""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import structlog
from redis import Redis
from redis.exceptions import RedisError

from preflight.cli.unusable import explain_unusable
from preflight.errors import PreflightError
from preflight.redis.connection import GLANCE_TIMEOUT, SOCKET_TIMEOUT, open_redis
from preflight.redis.retry import (
    BASE_PAUSE_SECONDS,
    CLUSTERED,
    MAX_PAUSE_SECONDS,
    PERMANENT_ERRORS,
    REDIS,
    backoff,
    clustered,
)
from preflight.redis.server.faults import ServerFaults, find_faults
from preflight.redis.server.program import MIN_REDIS_VERSION
from worker.config.settings import Settings

BAD_CERTIFICATE: Final = ("certificate verify failed", "is not valid for")
"""Parts of the ssl module's messages about a wrong certificate."""
CLOCK_SKEW_WARNING_SECONDS: Final = 60.0
"""Difference between this host's clock and Redis's from which on a worker warns: its events have wrong times."""
MAX_CLOCK_SKEW_SECONDS: Final = 3600.0
"""Difference from which on a worker does not start: it would remove others' checkpoints as old, refuse certificates."""


class ClockSkew(PreflightError):
    """The clocks of this host and of Redis are hours apart."""

    reason = "clock_skew"


class RedisUnreachable(PreflightError):
    """Redis did not answer while the worker started, or denies access."""

    reason = "redis_unreachable"


def connect(settings: Settings) -> Redis:
    """Return a connection on which Redis has answered; retries with exponential backoff.

    Raises:
        RedisUnreachable: it did not answer within `redis_wait` seconds, refused the password, is too old, is a cluster,
            or refuses scripts.
        ClockSkew: its clock and ours are hours apart.
    """
    connection = _open(settings, SOCKET_TIMEOUT)
    server = _wait_for_info(connection, settings)
    version = str(server["redis_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_REDIS_VERSION:
        least = ".".join(map(str, MIN_REDIS_VERSION))
        raise RedisUnreachable(
            f"Redis at {settings.safe_redis_url} is {version}, but must be {least} or newer; update it"
        )
    if clustered(server):
        raise _cluster_refused(settings)
    faults = ServerFaults()
    with suppress(RedisError):  # it has gone again; what comes next waits for it
        faults = find_faults(connection)
    if faults.scripts is not None:
        raise RedisUnreachable(f"Redis at {settings.safe_redis_url} {faults.scripts}")
    _warn_of_eviction(faults, settings)
    if "server_time_usec" in server:  # compatible servers may lack it
        _compare_clocks(time.time() - float(str(server["server_time_usec"])) / 1e6, settings)
    return connection


def glance_at_server(settings: Settings, *, writes: bool) -> None:
    """Look at Redis once, without waiting for one that is away; log its faults.

    Args:
        settings: the settings, with the address of Redis.
        writes: whether scripts are needed.

    Raises:
        RedisUnreachable: Redis answers and is a cluster.
    """
    with suppress(RedisError), _open(settings, GLANCE_TIMEOUT) as connection:
        if clustered(connection.info("server")):
            raise _cluster_refused(settings)
        faults = find_faults(connection)
        if writes and faults.scripts is not None:
            message = f"Redis at {settings.safe_redis_url} {faults.scripts}"
            structlog.get_logger("preflight").error("redis_without_scripts", message=message)
        _warn_of_eviction(faults, settings)


def _warn_of_eviction(faults: ServerFaults, settings: Settings) -> None:
    """Log that Redis loses keys where its memory is full."""
    if faults.eviction is not None:
        message = f"Redis at {settings.safe_redis_url} {faults.eviction}"
        structlog.get_logger("preflight").warning("redis_evicts", message=message)


def _open(settings: Settings, seconds: int) -> Redis:
    return open_redis(settings.redis_url, seconds=seconds, connect_seconds=seconds)


def _cluster_refused(settings: Settings) -> RedisUnreachable:
    return RedisUnreachable(f"Redis at {settings.safe_redis_url} {CLUSTERED}")


def _wait_for_info(connection: Redis, settings: Settings) -> Mapping[str, object]:
    deadline, pauses = time.monotonic() + settings.redis_wait, backoff(BASE_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
    while True:
        try:
            found = connection.info("server")
            REDIS.note_answer()
            return found
        except RedisError as error:
            pause = next(pauses)
            refused = isinstance(error, PERMANENT_ERRORS) or any(sign in str(error) for sign in BAD_CERTIFICATE)
            if refused or time.monotonic() + pause > deadline:
                raise RedisUnreachable(explain_unusable(settings, error)) from error
            REDIS.note_failure(error, "connect")
        time.sleep(pause)


def _compare_clocks(ahead: float, settings: Settings) -> None:
    """Warn, or raise `ClockSkew`, where this host's clock is `ahead` of Redis's, or behind it, by too many seconds."""
    if abs(ahead) < CLOCK_SKEW_WARNING_SECONDS:
        return
    found = f"this host's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} that of Redis"
    if abs(ahead) < MAX_CLOCK_SKEW_SECONDS:
        structlog.get_logger("preflight").warning("clock_skew", message=f"{found}; set both by NTP")
        return
    raise ClockSkew(
        f"{found} at {settings.safe_redis_url}, but may differ by {MAX_CLOCK_SKEW_SECONDS:.0f} s; set both by NTP"
    )
