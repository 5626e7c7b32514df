"""Layout of the live view: head, curves, facts, milestones."""

import time
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.text import Text

from preflight.cli.formatting.text import printable
from preflight.cli.watch.plots import plots
from preflight.cli.watch.rich_text import bar, labelled, left_and_right, wrapped
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
