"""Faults of a Redis that answers, but with which jobs do not run or get lost."""

from dataclasses import dataclass
from typing import Final

from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

NO_SCRIPTS: Final = (
    "refuses scripts, by which every job is enqueued, taken and ended, so nothing can run; grant `+eval +evalsha "
    "+script|load` to its user, and do not rename EVAL, EVALSHA or SCRIPT"
)
"""Predicate of an error message about a Redis without scripts."""
NEVER_EVICTS: Final = "noeviction"


@dataclass(frozen=True, slots=True)
class ServerFaults:
    """Faults of a Redis, each as the predicate of a sentence; None: no such fault, or Redis does not say."""

    scripts: str | None = None
    eviction: str | None = None


def find_faults(redis: Redis) -> ServerFaults:
    """Return the faults of a Redis; raises `redis.exceptions.RedisError` where it does not answer."""
    return ServerFaults(_refusal_of_scripts(redis), _eviction(redis))


def _refusal_of_scripts(redis: Redis) -> str | None:
    try:
        redis.register_script("return 1")()  # by EVALSHA and SCRIPT LOAD, as all scripts
    except ResponseError as error:
        if isinstance(error, NoPermissionError) or "unknown command" in str(error).lower():
            return f"{NO_SCRIPTS} ({ascii(str(error))[1:121].rstrip('.')})"
        raise
    return None


def _eviction(redis: Redis) -> str | None:
    """Return whether Redis removes keys where its memory is full; INFO says so where CONFIG is forbidden."""
    try:
        found = redis.info("memory")
        policy, most = str(found.get("maxmemory_policy", NEVER_EVICTS)), int(str(found.get("maxmemory", 0)))
    except (ResponseError, ValueError):  # no permission, or a compatible server with words of its own
        return None
    if policy == NEVER_EVICTS or most <= 0:
        return None
    return (
        f"removes keys once its memory of {most >> 20} MiB is full (maxmemory-policy is {policy[:40]}), so queued jobs "
        f"and results are lost without an error; set maxmemory-policy to {NEVER_EVICTS}"
    )
