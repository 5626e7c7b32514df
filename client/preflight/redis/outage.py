"""An outage of Redis in the log: a line at its start, one a minute, one at its end."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from redis.exceptions import RedisError

LOG_INTERVAL: Final = 60.0
"""Seconds between two lines while Redis is away."""


@dataclass(slots=True)
class Outage:
    """State of the outage of a process's Redis; all code that asks Redis reports here."""

    describe: Callable[[RedisError], str]
    backlog: Callable[[], int] = field(default=lambda: 0)
    """Returns how many events wait for Redis; the outage lasts until none does."""
    at_once: tuple[type[RedisError], ...] = ()
    """Errors that are an outage the first time, too: the connection did not break, Redis is another server now."""
    _began: float | None = None
    _failures: int = 0
    """Failures in a row; one alone is a broken connection, not an outage."""
    _log_at: float = 0.0
    _is_logged: bool = False
    _waiting: int = 0
    """Most events that waited."""

    @property
    def lasts(self) -> bool:
        """Whether Redis does not answer, or events still wait for it."""
        return self._began is not None

    def note_failure(self, error: RedisError, to: str = "") -> None:
        """Note that Redis did not answer; `to`: the operation."""
        now = time.monotonic()
        if self._began is None:
            self._began, self._log_at, self._waiting, self._failures, self._is_logged = now, now, 0, 0, False
        self._failures += 1
        self.note_backlog()
        if now < self._log_at or (self._failures == 1 and not isinstance(error, self.at_once)):
            return
        self._log_at, self._is_logged = now + LOG_INTERVAL, True
        away = now - self._began
        since = self.describe(error).rstrip(".") + (f" (for {away:.0f} s now)" if away >= 1 else "")
        waiting = f"; {_events(self._waiting)} waiting" if self._waiting else ""
        structlog.get_logger("preflight").warning(
            "redis_away", message=f"{since}{waiting}; it is tried again until it is back", away_s=round(away, 1),
            waiting=self._waiting, to=to,
        )  # fmt: skip

    def note_backlog(self) -> None:
        """Count the events that wait now."""
        self._waiting = max(self._waiting, self.backlog())

    def note_answer(self) -> None:
        """Note that Redis answered."""
        if self._began is None:
            return
        self.note_backlog()
        if self.backlog():
            return
        away, delivered = time.monotonic() - self._began, self._waiting
        self._began = None
        if not self._is_logged:
            return
        also = f"; {_events(delivered)} delivered" if delivered else ""
        structlog.get_logger("preflight").info(
            "redis_back", message=f"Redis is back after {away:.0f} s{also}", away_s=round(away, 1), delivered=delivered
        )


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{count:,} events"
