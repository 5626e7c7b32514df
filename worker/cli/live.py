"""The live view of a training without Redis: what `watch` draws, from the events of this process."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from worker.cli.context import log_to_stderr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.live import Live

    from preflight.wire import AnyEvent, TrainResult
    from worker.config.settings import Settings
    from worker.events.sink import Sink


class LiveSink:
    """Draws each event; the last drawing stays in the terminal."""

    def __init__(self, console: Console, live: Live) -> None:
        """Draw on `console`, in `live`."""
        from preflight.cli.watch.timeline import JobTimeline

        self._console, self._live = console, live
        self.timeline = JobTimeline("")
        self._drawn = 0.0

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:  # noqa: ARG002 - it is in the event
        """Draw the event, where the last drawing is old enough: the training needs the processors more."""
        from preflight.cli.watch.layout import render
        from preflight.cli.watch.live import MIN_REFRESH_SECONDS

        self.timeline.job_id = event.job_id
        self.timeline.apply(event)
        if time.monotonic() - self._drawn >= MIN_REFRESH_SECONDS:
            self._live.update(render(self.timeline, self._console, self._console.height), refresh=True)
            self._drawn = time.monotonic()


@contextmanager
def drawn(settings: Settings, *, as_json: bool) -> Iterator[Sink | None]:
    """Yield a sink that draws in the terminal; None where records go to stderr, as in a pipe, a file or a container."""
    console = None if as_json else _terminal()
    if console is None:
        log_to_stderr(settings)
        yield None
        return
    from rich.live import Live

    from preflight.cli.watch.layout import render
    from preflight.cli.watch.live import PROMPT_LINES

    # Warnings are drawn; a record would be written over the drawing.
    log_to_stderr(settings.model_copy(update={"log_level": "error"}))
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        sink = LiveSink(console, live)
        try:
            yield sink
        finally:
            live.stop()
            if sink.timeline.last is not None:
                console.print(render(sink.timeline, console, console.height - PROMPT_LINES))


def _terminal() -> Console | None:
    """Return the terminal behind standard output and error; None where one of them is something else."""
    try:
        from preflight.cli.watch.live import terminal
    except ImportError:  # rich is not installed
        return None
    return terminal() if sys.stdout.isatty() and sys.stderr.isatty() else None
