"""Options of RQ's `enqueue` apart from the call: retries, repeats, rate limit, callbacks; read within bounds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

MAX_INTERVALS: Final = 100
MAX_INTERVAL: Final = 10 * 365 * 86_400
"""Most seconds between two runs."""
MAX_RETRIES: Final = 100
MAX_REPEATS: Final = 10**9
MAX_RATE_LIMIT_BYTES: Final = 256
CALLBACKS: Final = {
    "success_callback_name": "on_success", "failure_callback_name": "on_failure", "stopped_callback_name": "on_stopped",
    "webhooks": "webhooks",
}  # fmt: skip
"""Fields that name a function to import or a URL to fetch -> RQ's option; neither is done for a queue."""
FIELDS: Final = (
    "retries_left", "number_of_retries", "retry_intervals", "enqueue_at_front_on_retry", "repeats_left",
    "repeat_intervals", "rate_limit_key", "rate_limit_concurrency", "enqueue_at_front", "group_id", *CALLBACKS,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RqOptions:
    """The options of one job."""

    retries_left: int
    retry_intervals: Sequence[int]
    """Seconds before each retry; the last of them count down with `retries_left`, as in RQ."""
    retry_at_front: bool
    repeats_left: int
    repeat_intervals: Sequence[int]
    """Seconds before each repeat; the last one serves all that follow."""
    rate_limit: str | None
    """Name of RQ 3's rate limit, of which the job holds a slot."""
    refused: Sequence[str]
    """Options with a function to import or a URL to fetch."""

    @property
    def retry_pause(self) -> int:
        """Seconds before the next retry; 0: at once."""
        intervals = self.retry_intervals
        return intervals[max(len(intervals) - self.retries_left, 0)] if intervals and self.retries_left else 0

    @property
    def repeat_pause(self) -> int:
        """Seconds before the next repeat; 0: at once."""
        return self.repeat_intervals[0] if self.repeat_intervals else 0


def parse_options(fields: Mapping[str, bytes]) -> RqOptions:
    """Return the options in the fields of a job's hash; one that is out of bounds counts as not given."""
    limit = fields.get("rate_limit_key", b"")
    return RqOptions(
        retries_left=min(whole(fields.get("retries_left"), 0, None) or 0, MAX_RETRIES),
        retry_intervals=_intervals(fields.get("retry_intervals")),
        retry_at_front=fields.get("enqueue_at_front_on_retry") == b"1",
        repeats_left=min(whole(fields.get("repeats_left"), 0, None) or 0, MAX_REPEATS),
        repeat_intervals=_intervals(fields.get("repeat_intervals")),
        rate_limit=limit.decode(errors="surrogateescape") if 0 < len(limit) <= MAX_RATE_LIMIT_BYTES else None,
        refused=tuple(option for field, option in CALLBACKS.items() if fields.get(field, b"") not in (b"", b"[]")),
    )


def whole(value: bytes | None, least: int, most: int | None) -> int | None:
    """Return a whole number in plain digits; None for anything else, and beyond the bounds."""
    if value is None or len(value) > 18 or not value.removeprefix(b"-").isdigit():
        return None
    number = int(value)
    return number if number >= least and (most is None or number <= most) else None


def _intervals(value: bytes | None) -> tuple[int, ...]:
    try:
        found: JsonValue = json.loads(value.decode()) if value else None
    except (ValueError, RecursionError):
        return ()
    listed = found if isinstance(found, list) else [found]
    intervals = [number for number in listed[:MAX_INTERVALS] if isinstance(number, int) and 0 <= number <= MAX_INTERVAL]
    return tuple(intervals) if len(intervals) == len(listed[:MAX_INTERVALS]) else ()
