"""Live view of a job in a terminal; needs the extra `cli`."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from redis.exceptions import RedisError
from rich.console import Console
from rich.live import Live

from preflight import Client, Silence
from preflight.cli.watch.layout import render
from preflight.cli.watch.timeline import JobTimeline
from preflight.wire import AnyEvent

MIN_REFRESH_SECONDS: Final = 0.25
"""Seconds between two drawings after events: the training needs the CPU more."""
IDLE_REFRESH_SECONDS: Final = 1.0
"""Seconds between two drawings without events: the clock advances."""
PROMPT_LINES: Final = 2
"""Lines of the terminal that the final drawing leaves free."""


def terminal() -> Console | None:
    """Return the terminal behind standard output; None where it cannot show the view."""
    console = Console(markup=False, emoji=False, highlight=False)
    able = console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
    return console if able else None


def watch(console: Console, client: Client, job_id: str) -> AnyEvent | None:
    """Show a job until it has ended, leave the final drawing in the terminal, and return the last event."""
    timeline, drawn, fresh = JobTimeline(job_id), 0.0, False
    with drawing(console, timeline) as draw:
        for update in client.follow(job_id):
            if timeline.last is None and not isinstance(update, Silence) and update.seq > 1:
                _apply_trimmed(timeline, client, update)
            fresh |= timeline.apply(update)
            if time.monotonic() - drawn < (MIN_REFRESH_SECONDS if fresh else IDLE_REFRESH_SECONDS):
                continue
            if timeline.status == "queued" and timeline.redis_problem is None:
                timeline.jobs_ahead = _position(client, job_id)
            draw()
            drawn, fresh = time.monotonic(), False
    return timeline.last


@contextmanager
def drawing(console: Console, timeline: JobTimeline, *, keep_empty: bool = True) -> Iterator[Callable[[], None]]:
    """Yield a function that draws the timeline on the whole terminal; afterwards leave the final drawing there.

    `keep_empty`: leave it also where no event came.
    """
    try:
        with Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live:
            yield lambda: live.update(render(timeline, console, console.height), refresh=True)
    finally:
        if keep_empty or timeline.last is not None:
            console.print(render(timeline, console, console.height - PROMPT_LINES))


def _apply_trimmed(timeline: JobTimeline, client: Client, first: AnyEvent) -> None:
    """Apply the lifecycle events before `first`, which the capped stream has dropped."""
    with suppress(RedisError):  # `follow` reports that Redis is away
        for event in client.lifecycle_events(timeline.job_id):
            if (event.attempt, event.seq) < (first.attempt, first.seq):
                timeline.apply(event)


def _position(client: Client, job_id: str) -> int | None:
    with suppress(RedisError):
        return client.position(job_id)
    return None
