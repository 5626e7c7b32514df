"""Retry Redis operations until they succeed or fail permanently."""

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from preflight.redis.outage import Outage
from preflight.redis.primary import NotPrimary

BASE_PAUSE_SECONDS: Final = 0.1
"""Longest pause before the second try."""
MAX_PAUSE_SECONDS: Final = 2.0

PERMANENT_ERRORS: Final = (AuthenticationError, NoPermissionError)
"""The credentials are wrong, or lack a permission; retrying does not help."""
DATA_FAULT: Final = re.compile(
    r"WRONGTYPE|last possible ID|target stream top item|not an integer|not a valid float|overflow"
    r"|user_script:\d+: (?!.*(OOM|READONLY|MISCONF|NOREPLICAS|MASTERDOWN|LOADING|nknown|can't (run|access)|permission))"
)
"""Messages of Redis, from scripts too, about a key of a wrong type or value. Errors of scripts for the state of the
server (full, a replica, loading) or for missing permissions do not match."""
CLUSTERED: Final = (
    "is a cluster, but preflight's scripts use keys of several slots; set REDIS_URL to a server without cluster-enabled"
)
"""Predicate of an error message about a Redis Cluster."""

T = TypeVar("T")

CONDITIONS: Final[dict[type[RedisError], str]] = {
    AuthenticationError: "refuses the password", NoPermissionError: "refuses a command", OutOfMemoryError: "is full",
    NotPrimary: "is a read-only replica", BusyLoadingError: "is loading its data",
    TimeoutError: "does not answer in time", ConnectionError: "cannot be reached",
    ClusterError: CLUSTERED, ClusterCrossSlotError: CLUSTERED, AskError: CLUSTERED,
}  # fmt: skip
"""Error of redis-py -> predicate of a message about Redis, subclasses first."""


def backoff(first: float, longest: float) -> Iterator[float]:
    """Yield pauses in seconds: 50 to 100 % of `first`, then of twice as much each time, up to `longest`."""
    bound = first
    while True:
        yield random.uniform(bound / 2, bound)  # noqa: S311 - it only has to differ from that of other processes
        bound = min(2 * bound, longest)


def condition(error: RedisError) -> str:
    """Return the predicate of a message about Redis, such as "is full"."""
    if "OOM command not allowed" in str(error):  # from a script it comes as a plain error
        return CONDITIONS[OutOfMemoryError]
    return next((name for kind, name in CONDITIONS.items() if isinstance(error, kind)), "refuses")


def describe_error(error: RedisError) -> str:
    """Return an error of Redis as a sentence for a log line."""
    return f"Redis {condition(error)}: {error}"


REDIS: Final = Outage(describe_error, at_once=(NotPrimary,))
"""Outage that this process sees: its log has one line for it, whichever code notices."""


def clustered(server: Mapping[str, object]) -> bool:
    """Whether the section `server` of INFO is that of a Redis Cluster."""
    return server.get("redis_mode") == "cluster"


def is_wrong_type(error: RedisError) -> bool:
    """Whether a key has a wrong type or value, which retrying does not change either."""
    return isinstance(error, ResponseError) and DATA_FAULT.search(str(error)) is not None


def retry_until_available(
    action: Callable[[], T], what: str, on_retry: Callable[[], None], *, wrong_types: bool = False
) -> T:
    """Return what `action` returns, once Redis is available; `action` may run more than once.

    Args:
        action: the operation.
        what: its name in the log.
        on_retry: called between two tries; an exception of it ends the wait.
        wrong_types: retry keys of a wrong type, too: somebody may repair them.

    Raises:
        redis.exceptions.AuthenticationError, NoPermissionError, ResponseError: retrying does not help.
    """
    pauses = backoff(BASE_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
    while True:
        try:
            answer = action()
            REDIS.note_answer()
            return answer
        except PERMANENT_ERRORS:
            raise
        except RedisError as error:
            if is_wrong_type(error) and not wrong_types:
                raise
            REDIS.note_failure(error, what)
        on_retry()
        time.sleep(next(pauses))
