"""Layout of the live view: head, curves, facts, milestones."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.text import Text

from preflight.cli.formatting.text import printable
from preflight.cli.watch.braille import Curve, draw
from preflight.cli.watch.rich_text import bar, labelled, left_and_right, truncated, wrapped
from preflight.cli.watch.stages import format_clock, group_line, stage_lines, time_lines
from preflight.cli.watch.timeline import JobTimeline
from preflight.events.plan_words import plan_line
from preflight.numbers import MIB, plural
from preflight.wire import GroupShort, JobInterrupted, JobWarning, MemoryRanOut

MAX_WIDTH: Final = 300
LABEL_WIDTH: Final = 8
TIME_WIDTH: Final = 9
"""Columns of the time before a milestone."""
TALL_LINES: Final = 22
"""Lines from which on facts may take two, and milestones four."""
MILESTONE_LINES: Final = 4
"""Lines that the curves leave to milestones."""
MAX_PLOT_ROWS: Final = 10
MAX_ERROR_LINES: Final = 12

COLORS: Final = {"queued": "yellow", "running": "cyan", "finished": "green", "failed": "red", "cancelled": "yellow"}
MIN_ROWS: Final = 2
AXIS_WIDTH: Final = 8
"""Columns of the numbers next to a curve."""
MIN_WIDTH_WITH_AXIS: Final = 60


def plots(timeline: JobTimeline, width: int, rows: int) -> Iterator[Text]:
    """Yield loss and accuracy side by side, in `rows` rows below their titles."""
    now = timeline.progress
    if now is None or rows < MIN_ROWS:
        return
    end, half = now.epochs, (width - 2) // 2
    validation = timeline.epoch.val_acc if timeline.epoch else None
    beside = "" if validation is None or width < MIN_WIDTH_WITH_AXIS else f", validation {validation:.2%}"
    # Loss falls by orders of magnitude.
    logs = Curve([(x, math.log10(max(1e-9, value))) for x, value in timeline.loss.points])
    left = _plot(logs, end, half, rows, lambda value: f"{10**value:.2g}", "magenta")
    right = _plot(timeline.accuracy, end, half, rows, lambda value: f"{value:.1%}", "blue")
    title = f"accuracy {now.accuracy:.1%}{beside}"
    titles = [truncated(Text(text), half) for text in (f"loss {now.loss:.4f}", title)]
    for one, other in [titles, *zip(left, right, strict=True)]:
        one.pad_right(max(0, half + 2 - one.cell_len))
        yield one + other


def _plot(curve: Curve, end: float, width: int, rows: int, label: Callable[[float], str], color: str) -> Iterator[Text]:
    """Yield the rows of a curve, with its maximum and minimum next to it where they fit."""
    axis = AXIS_WIDTH if width * 2 >= MIN_WIDTH_WITH_AXIS else 0
    low, high = curve.range
    for number, line in enumerate(draw(curve.points, end, width - axis, rows)):
        beside = {0: label(high), rows - 1: label(low)}.get(number, "")
        yield Text(beside.rjust(axis - 1) + " " if axis else "", style="dim") + Text(line, style=color)


def render(timeline: JobTimeline, console: Console, height: int, now: float | None = None) -> Text:
    """Return the job in at most `height` lines of the console's width; `now`: seconds since the epoch."""
    width, tall = min(MAX_WIDTH, console.width), height >= TALL_LINES
    lines = [*_head(timeline, console, width, time.time() if now is None else now)]
    facts = [*_facts(timeline, console, width, 2 if tall else 1)]
    used = len(lines) + len(facts) + 3  # blank lines between the parts
    rows = height - used - (MILESTONE_LINES if tall else MILESTONE_LINES // 2) - 1
    for block in ([*plots(timeline, width, min(MAX_PLOT_ROWS, rows))], facts):
        lines += [Text(), *block] if block else []
    milestones = _milestones(timeline, console, width, height - len(lines) - 1)
    lines += [Text(), *milestones] if milestones else []
    return Text("\n").join(lines[:height])


def _head(timeline: JobTimeline, console: Console, width: int, now: float) -> Iterator[Text]:
    color = COLORS.get(timeline.status, "")
    status = Text(timeline.status, style=f"bold {color}")
    if timeline.started_at is not None:
        until = timeline.last.ts if timeline.is_finished and timeline.last else now
        status.append(f" {format_clock(until - timeline.started_at)}", style="default")
    yield left_and_right(Text(printable(timeline.job_id), style="bold"), status, width)
    if timeline.start is not None:
        one = timeline.start
        what = f"{one.model} on {one.dataset}, {plural(one.epochs, 'epoch')}, batch {one.batch_size}"
        yield from wrapped(f"{what}, attempt {one.attempt} on {one.worker}", console, width, 2)
    if timeline.redis_problem is not None:
        yield from wrapped(f"waiting for Redis, which {timeline.redis_problem}", console, width, 1, style="bold yellow")
    if timeline.progress is not None:
        yield bar(timeline.done, width, color)
    for text, style in stage_lines(timeline):
        yield from wrapped(text, console, width, MAX_ERROR_LINES if timeline.is_finished else 2, style=style)


def _facts(timeline: JobTimeline, console: Console, width: int, most: int) -> Iterator[Text]:
    """Yield plan, reason, prediction and memory, each in at most `most` lines."""
    facts: list[tuple[str, str]] = []
    if timeline.plan is not None:
        facts.append(("plan", plan_line(timeline.plan)))
    if timeline.winner is not None:
        facts.append(("why", timeline.winner.why))
        facts += [("time", text) for text in time_lines(timeline)]
    if timeline.group is not None:
        facts.append(("group", group_line(timeline.group, timeline.measured)))
    if timeline.limits is not None:
        peak = timeline.peak_bytes
        used = "" if peak is None else f"{peak / MIB:,.0f} MiB measured under this plan, "
        facts.append(("memory", f"{used}{timeline.limits.memory_mib:,} MiB allowed"))
    for label, text in facts:
        yield from labelled(label, LABEL_WIDTH, wrapped(text, console, width - LABEL_WIDTH, most))


def _milestones(timeline: JobTimeline, console: Console, width: int, most: int) -> list[Text]:
    """Return the newest milestones that fit in `most` lines, oldest first."""
    found: list[Text] = []
    for event, text in reversed(timeline.milestones):
        style = "yellow" if isinstance(event, JobWarning | MemoryRanOut | JobInterrupted | GroupShort) else ""
        at = time.strftime("%H:%M:%S", time.localtime(event.ts))
        lines = [*labelled(at, TIME_WIDTH, wrapped(text, console, width - TIME_WIDTH, 2, style=style))]
        if len(found) + len(lines) > most:
            break
        found = [*lines, *found]
    return found
