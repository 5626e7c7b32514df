"""A Redis that does not answer, denies access or takes no writes, in one sentence: the same in every command."""

from typing import Final

from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterCrossSlotError,
    ClusterError,
    ConnectionError,
    NoPermissionError,
    RedisError,
    TimeoutError,
)

from preflight.cli.settings import ClientSettings, load
from preflight.redis.primary import NotPrimary
from preflight.redis.retry import CLUSTERED, condition
from preflight.redis.url import other_scheme

ADVICE: Final = "set REDIS_URL or start Redis"
ADVICES: Final[dict[type[RedisError], str]] = {
    NotPrimary: "set REDIS_URL to the address of its primary, or try again where that is changing",
    AuthenticationError: "correct user and password, in REDIS_URL or in the file that REDIS_PASSWORD_FILE names",
    NoPermissionError: "give its user that right",
}
"""Error -> what to do, where Redis answers."""
ADVICE_UNSET: Final = "REDIS_URL is not set: set it, or start Redis there"
REFUSED_WRITES: Final = (
    ("command not allowed when used memory", "is full",
     "raise its maxmemory or delete what is not needed, and keep maxmemory-policy noeviction"),
    ("read only replica", "is a read-only replica", "set REDIS_URL to the address of its primary"),
    ("MISCONF", "takes no writes, as it cannot save to its disk", "make room there, or correct its setting dir"),
    ("NOREPLICAS", "takes no writes, as it has too few replicas", "start them, or lower its min-replicas-to-write"),
    ("MASTERDOWN", "has lost its primary", "try again when that is back, or set REDIS_URL to the new one"),
)  # fmt: skip
"""Part of an error of Redis, which a script may have raised -> predicate, and what to do."""


def explain_error(error: Exception) -> str | None:
    """Return the sentence on a Redis that is away, a cluster, denies access or takes no writes; None: another error."""
    if isinstance(error, AskError | ClusterCrossSlotError | ClusterError):
        return f"Redis {CLUSTERED}"
    for sign, state, remedy in REFUSED_WRITES:
        if isinstance(error, RedisError) and sign in str(error):
            settings = load()
            said = settings.redact(str(error)).rstrip(".")
            return f"Redis at {settings.safe_redis_url} {state} ({said}); {remedy}"
    if not isinstance(error, ConnectionError | NoPermissionError | TimeoutError):
        return None
    return explain_unusable(load(), error)


def explain_unusable(settings: ClientSettings, error: RedisError) -> str:
    """Return the sentence on a Redis that does not answer or denies access, the same in every command."""
    advice = ADVICE if "redis_url" in settings.model_fields_set else ADVICE_UNSET
    advice = other_scheme(settings.redis_url, str(error)) or advice
    advice = next((said for kind, said in ADVICES.items() if isinstance(error, kind)), advice)
    return (
        f"Redis at {settings.safe_redis_url} {condition(error)} ({settings.redact(str(error)).rstrip('.')}); {advice}"
    )
