"""Return values of the client, and its default limits."""

from dataclasses import dataclass
from typing import Final

IDLE_SECONDS: Final = 5.0
"""Seconds without an event before a subscriber checks that the job is active; also its socket timeout."""
PAGE_SIZE: Final = 1000
"""Maximum number of events, job states or ids of one source in one read."""
MAX_EVENT_FIELDS: Final = 128
"""Most fields of a stream record; the largest event has a third. An unknown field costs half a kilobyte to refuse."""
DEFAULT_LIMIT: Final = 100
"""Jobs in a list without a limit."""


@dataclass(frozen=True, slots=True)
class EnqueueResult:
    """A job in the queue or in the outbox."""

    job_id: str
    created: bool
    """False: a job of this id exists already, or Redis was unavailable."""
    waiting: bool = False
    """Redis was unavailable: the job is in the outbox for `Client.resubmit`."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A poll without a new event."""

    redis_problem: str | None = None
    """State of Redis, such as `cannot be reached`; None: Redis answered."""
