"""Waiting for Redis: what has to be written is tried until it is written."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import structlog
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

FIRST_PAUSE: Final = 0.1
"""Seconds before the second try."""
LONGEST_PAUSE: Final = 2.0
"""Seconds between two tries, once the pauses have grown."""
SAY_EVERY: Final = 10.0
"""Seconds between two log lines of one wait."""

HOPELESS: Final = (AuthenticationError, NoPermissionError)
"""What no waiting mends: the credentials are wrong, or their rights."""
DATA_FAULT: Final = re.compile(
    r"WRONGTYPE|last possible ID|target stream top item|not an integer|not a valid float|overflow"
    r"|user_script:\d+: (?!.*(OOM|READONLY|MISCONF|NOREPLICAS|MASTERDOWN|LOADING|nknown|can't (run|access)|permission))"
)
"""How Redis says, in scripts too, that a key holds what cannot be worked with. A script that fails for what Redis
itself is like just now (full, a replica, loading), or for missing rights, says no such thing."""
CLUSTERED: Final = (
    "is a cluster, but preflight's scripts use keys of several slots; set REDIS_URL to a server without cluster-enabled"
)
"""What is said of a Redis Cluster, behind its name."""

T = TypeVar("T")


TROUBLE: Final[dict[type[RedisError], str]] = {
    AuthenticationError: "refuses the password", NoPermissionError: "refuses a command", OutOfMemoryError: "is full",
    ReadOnlyError: "is a read-only replica", BusyLoadingError: "is loading its data",
    TimeoutError: "does not answer in time", ConnectionError: "cannot be reached",
    ClusterError: CLUSTERED, ClusterCrossSlotError: CLUSTERED, AskError: CLUSTERED,
}  # fmt: skip
"""Error of redis-py -> what Redis does, the special ones first."""


def condition(error: RedisError) -> str:
    """Return what Redis does, to be said behind its name."""
    if "OOM command not allowed" in str(error):  # from a script it comes as a plain error
        return TROUBLE[OutOfMemoryError]
    return next((name for kind, name in TROUBLE.items() if isinstance(error, kind)), "refuses")


def trouble(error: RedisError) -> str:
    """Return what is the matter with Redis, for a log line."""
    return f"Redis {condition(error)}: {error}"


def clustered(server: Mapping[str, object]) -> bool:
    """Whether the section `server` of INFO is that of a Redis Cluster."""
    return server.get("redis_mode") == "cluster"


def spoiled(error: RedisError) -> bool:
    """Whether Redis says that a key is not what it should be: no waiting mends that either."""
    return isinstance(error, ResponseError) and DATA_FAULT.search(str(error)) is not None


def insist(action: Callable[[], T], what: str, look: Callable[[], None], *, whatever: bool = False) -> T:
    """Return what `action` returns, once Redis is there for it; `action` may run more than once.

    Args:
        action: what is done.
        what: its name in the log.
        look: called between two tries; what it raises ends the wait.
        whatever: also where a key is not what it should be, because nobody could do better.

    Raises:
        redis.exceptions.AuthenticationError, NoPermissionError, ResponseError: waiting would not help.
    """
    pause, say_at = FIRST_PAUSE, time.monotonic()
    while True:
        try:
            return action()
        except HOPELESS:
            raise
        except RedisError as error:
            if spoiled(error) and not whatever:
                raise
            if time.monotonic() >= say_at:
                structlog.get_logger("preflight").warning("waiting_for_redis", to=what, detail=trouble(error))
                say_at = time.monotonic() + SAY_EVERY
        look()
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
