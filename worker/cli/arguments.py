"""Parse arguments: job ids, statuses, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

from preflight.contract.registry import nearest
from preflight.errors import InvalidConfig

if TYPE_CHECKING:
    from preflight.wire import Status

MAX_LISTED_JOBS: Final = 10_000
MAX_QUOTED_LENGTH: Final = 60
"""Characters of a wrong value that an error repeats."""


def quote(text: str) -> str:
    """Return `text` quoted and truncated, for an error message."""
    return repr(text) if len(text) <= MAX_QUOTED_LENGTH else f"{text[:MAX_QUOTED_LENGTH]!r}..."


def check_job_id(job_id: str) -> None:
    """Raise `InvalidConfig` for a malformed id, before Redis is asked."""
    from preflight.wire import is_job_id

    if not is_job_id(job_id):
        raise InvalidConfig(
            f"JOB is {quote(job_id)}, but must be 1 to 64 letters, digits, '.', '_' or '-'; `preflight jobs` lists ids",
            field="job_id",
        )


def parse_statuses(text: str | None) -> frozenset[Status]:
    """Return the statuses in a comma-separated list; raises `InvalidConfig`."""
    from preflight.wire import Status

    known: dict[str, Status] = {status: status for status in get_args(Status)}
    named = frozenset() if text is None else frozenset(part.strip() for part in text.split(","))
    for name in sorted(named.difference(known)):
        raise InvalidConfig(
            f"--status {quote(name)} is not known{nearest(name, [*known])}; use some of {', '.join(known)}",
            field="status",
        )
    return frozenset(known[name] for name in named)


def parse_limit(text: str | None) -> int:
    """Return how many jobs to list; raises `InvalidConfig`."""
    from preflight.client.results import DEFAULT_LIMIT

    return DEFAULT_LIMIT if text is None else parse_count("limit", text, MAX_LISTED_JOBS)


def parse_count(option: str, text: str, most: int) -> int:
    """Return the whole number from 1 to `most` that an option gives; raises `InvalidConfig`."""
    # The length first: int() raises its own error for thousands of digits.
    short = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not short or not 1 <= int(text) <= most:
        raise InvalidConfig(
            f"--{option} is {quote(text)}, but must be a whole number of at least 1 and at most {most}", field=option
        )
    return int(text)
