"""The live view of a training without Redis: what `watch` draws, from the events of this process."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from worker.cli.context import log_to_stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from preflight.cli.watch.timeline import JobTimeline
    from preflight.wire import AnyEvent, TrainResult
    from worker.config.settings import Settings
    from worker.events.log_sink import Sink


class LiveSink:
    """Draws events as they come."""

    def __init__(self, timeline: JobTimeline, draw: Callable[[], None]) -> None:
        """Add events to `timeline`; `draw` draws it."""
        self._timeline, self._draw = timeline, draw
        self._drawn = 0.0

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:  # noqa: ARG002 - it is in the event
        """Draw the event, where the last drawing is old enough: the training needs the processors more."""
        from preflight.cli.watch.live import MIN_REFRESH_SECONDS

        self._timeline.job_id = event.job_id
        self._timeline.apply(event)
        if time.monotonic() - self._drawn >= MIN_REFRESH_SECONDS:
            self._draw()
            self._drawn = time.monotonic()


@contextmanager
def drawn(settings: Settings, *, as_json: bool) -> Iterator[Sink | None]:
    """Yield a sink that draws in the terminal; None where records go to stderr, as in a pipe, a file or a container."""
    console = None if as_json else _terminal()
    if console is None:
        log_to_stderr(settings)
        yield None
        return
    from preflight.cli.watch.live import drawing
    from preflight.cli.watch.timeline import JobTimeline

    # Warnings are drawn; a record would be written over the drawing.
    log_to_stderr(settings.model_copy(update={"log_level": "error"}))
    timeline = JobTimeline("")
    with drawing(console, timeline, keep_empty=False) as draw:
        yield LiveSink(timeline, draw)


def _terminal() -> Console | None:
    """Return the terminal behind standard output and error; None where one of them is something else."""
    try:
        from preflight.cli.watch.live import terminal
    except ImportError:  # rich is not installed
        return None
    return terminal() if sys.stdout.isatty() and sys.stderr.isatty() else None
