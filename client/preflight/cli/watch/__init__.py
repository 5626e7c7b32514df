"""Watch a job: live in a terminal, else one line per event."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import click

from preflight.cli.arguments import check_job_id
from preflight.cli.exit_codes import INTERRUPTED
from preflight.errors import InvalidConfig

if TYPE_CHECKING:
    from preflight import Client
    from preflight.wire import AnyEvent


def watch_job(client: Client, job_id: str, *, plain: bool = False) -> NoReturn:
    """Show a job until it ends, and exit with its code."""
    from preflight.cli.formatting.events import exit_code
    from preflight.wire import TERMINAL_EVENTS

    check_job_id(job_id)
    state = client.status(job_id)
    if state.status == "unknown":
        raise InvalidConfig(f"job {job_id!r} is not known; `preflight jobs` lists known jobs", field="job_id")
    job_id = state.job_id  # the given one may be RQ's
    try:
        last = show_events(client, job_id, plain=plain)
        if last is None or last.type not in TERMINAL_EVENTS:
            rest = "no events are stored" if last is None else "no further events are stored"
            click.echo(f"{job_id} is {client.status(job_id).status}; {rest}", err=True)
    except KeyboardInterrupt:
        click.echo(f"{job_id} continues; `preflight watch` shows it again, `preflight cancel` stops it", err=True)
        raise SystemExit(INTERRUPTED) from None
    raise SystemExit(exit_code(last))


def show_events(client: Client, job_id: str, *, plain: bool = False) -> AnyEvent | None:
    """Show a job until it ends; return its last event."""
    view = None if plain else live_view()
    return (view or _print_events)(client, job_id)


def live_view() -> Callable[[Client, str], AnyEvent | None] | None:
    """Return the live view; None where stdout cannot show it, or `rich` is not installed."""
    try:
        from preflight.cli.watch.live import terminal, watch
    except ImportError:
        return None
    console = terminal() if sys.stdout.isatty() else None
    return None if console is None else partial(watch, console)


def _print_events(client: Client, job_id: str) -> AnyEvent | None:
    """Print one line per event; return the last event, not counting those of extras."""
    from preflight import Silence
    from preflight.cli.formatting.events import format_event
    from preflight.wire import follows_end

    last: AnyEvent | None = None
    waiting = False
    for update in client.follow(job_id):
        if not isinstance(update, Silence):
            last, line = last if follows_end(update, last) else update, format_event(update)
            if line:
                click.echo(line)
            continue
        if update.redis_problem is not None and not waiting:
            click.echo(f"waiting for Redis, which {update.redis_problem}", err=True)
        waiting = update.redis_problem is not None
    return last
