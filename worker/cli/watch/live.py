"""A job in a terminal, drawn anew as it goes on; needs the extra `cli`."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from redis.exceptions import RedisError
from rich.console import Console
from rich.live import Live
from rich.text import Text

from worker.cli.formatting.choices import plan_line
from worker.cli.watch.braille import Curve, draw
from worker.cli.watch.timeline import Story
from worker.client import Client, Silence
from worker.queue.quarantine import printable
from worker.wire import AnyEvent, JobCancelled, JobFailed, JobInterrupted, JobWarning, MemoryRanOut, TrainingDone

EVERY: Final = 0.25
"""Least seconds between two drawings: the training needs the processors more."""
CLOCK: Final = 1.0
"""Seconds after which it is drawn anew though nothing was heard."""
BEYOND: Final = 300
"""Columns beyond which nothing is drawn."""
LABEL: Final = 8
"""Columns before a fact."""
LEAST_PLOT: Final = 2
"""Rows of a curve; with fewer there is none."""
MOST_PLOT: Final = 10
"""Rows of a curve in the tallest terminal."""
TURNS: Final = 4
"""Lines that curves leave to turning points."""
STAMP: Final = 9
"""Columns before a turning point."""
TALL: Final = 22
"""Lines from which on facts may take two, and turning points four."""
PROMPT: Final = 2
"""Lines that the picture that stays leaves to what follows it."""
MOST_TOLD: Final = 12
"""Lines of why a job failed."""
AXIS: Final = 8
"""Columns for the numbers beside a curve."""
ROOMY: Final = 60
"""Columns from which on curves have such numbers."""
MIB: Final = 1 << 20

COLORS: Final = {"queued": "yellow", "running": "cyan", "finished": "green", "failed": "red", "cancelled": "yellow"}


def terminal() -> Console | None:
    """Return the terminal behind standard output; None where it cannot show the view."""
    console = Console(markup=False, emoji=False, highlight=False)
    able = console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
    return console if able else None


def watch(client: Client, job_id: str, console: Console) -> AnyEvent | None:
    """Show a job until it has ended, leave its last picture in the terminal, and return its last event."""
    story, drawn = Story(job_id), 0.0
    fresh = False
    try:
        with Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live:
            for said in client.follow(job_id):
                if story.last is None and not isinstance(said, Silence) and said.seq > 1:  # the stream is capped
                    _hear_what_is_gone(story, client, said)
                fresh |= story.hear(said)
                if time.monotonic() - drawn < (EVERY if fresh else CLOCK):
                    continue
                if story.status == "queued" and story.trouble is None:
                    story.before = _position(client, job_id)
                live.update(picture(story, console, console.height), refresh=True)
                drawn, fresh = time.monotonic(), False
    finally:
        console.print(picture(story, console, console.height - PROMPT))
    return story.last


def _hear_what_is_gone(story: Story, client: Client, first: AnyEvent) -> None:
    """Hear of the turning points before the first event that is left."""
    with suppress(RedisError):  # it goes away now and then; who follows the job hears of that
        for event in client.turning_points(story.job_id):
            if (event.attempt, event.seq) < (first.attempt, first.seq):
                story.hear(event)


def _position(client: Client, job_id: str) -> int | None:
    with suppress(RedisError):
        return client.position(job_id)
    return None


def picture(story: Story, console: Console, height: int, now: float | None = None) -> Text:
    """Return the job as it is now, in at most `height` lines of the console's width; `now`: seconds since the epoch."""
    width, tall = min(BEYOND, console.width), height >= TALL
    lines = [*_head(story, console, width, time.time() if now is None else now)]
    facts = [*_facts(story, console, width, 2 if tall else 1)]
    used = len(lines) + len(facts) + 3  # blank lines between the parts
    rows = height - used - (TURNS if tall else TURNS // 2) - 1
    for block in ([*_plots(story, width, min(MOST_PLOT, rows))], facts):
        lines += [Text(), *block] if block else []
    turns = _turns(story, console, width, height - len(lines) - 1)
    lines += [Text(), *turns] if turns else []
    return Text("\n").join(lines[:height])


def _head(story: Story, console: Console, width: int, now: float) -> Iterator[Text]:
    status = Text(story.status, style=f"bold {COLORS.get(story.status, '')}")
    if story.began is not None:
        until = story.last.ts if story.over and story.last else now
        status.append(f" {_clock(until - story.began)}", style="default")
    yield _apart(Text(printable(story.job_id), style="bold"), status, width)
    if story.started is not None:
        one = story.started
        epochs = "1 epoch" if one.epochs == 1 else f"{one.epochs} epochs"
        what = f"{one.model} on {one.dataset}, {epochs}, batch {one.batch_size}"
        yield from _wrapped(f"{what}, attempt {one.attempt} on {one.worker}", console, width, 2)
    if story.trouble is not None:
        yield from _wrapped(f"waiting for Redis, which {story.trouble}", console, width, 1, style="bold yellow")
    if story.progress is not None:
        yield _bar(story.done, width, COLORS.get(story.status, ""))
    for text, style in _stage(story):
        yield from _wrapped(text, console, width, MOST_TOLD if story.over else 2, style=style)


def _stage(story: Story) -> Iterator[tuple[str, str]]:
    """Yield what the job is doing, or what came of it, with its style."""
    match story.last:
        case TrainingDone() as done:
            yield f"test accuracy {done.test_accuracy:.2%}", "bold green"
            yield f"{_clock(done.train_seconds)} of training, {done.samples_per_s:,.0f} samples/s", ""
            yield f"{done.artifact}/model.safetensors", ""
        case JobFailed() as failed:
            yield f"{failed.reason}: {failed.message}", "bold red"
        case JobCancelled() as cancelled:
            yield cancelled.message, "yellow"
        case _:
            yield _doing(story), ""


def _doing(story: Story) -> str:
    if story.status == "queued":
        before = {None: "", 0: ", it is the next"}.get(story.before, f", {story.before} before it")
        return f"waits in the queue{before}"
    now = story.progress
    if now is None or story.last is None or now.attempt != story.last.attempt:
        return _preparing(story)
    if now.epoch == now.epochs and now.step == now.steps:
        return f"epoch {now.epoch}/{now.epochs} is done; testing and saving"
    figures = f"epoch {now.epoch}/{now.epochs}, step {now.step:,}/{now.steps:,}, {now.samples_per_s:,.0f} samples/s"
    return f"{figures}, {_clock(now.eta_s)} left"


def _preparing(story: Story) -> str:
    """Return what an attempt does before its first step."""
    if story.winner is not None:
        return "the training process starts"
    if story.trials:
        gain = f", the best {story.best:.2f}x as fast as the job's own" if story.best > 1 else ""
        return f"plans are measured: {story.trials} tried{gain}"
    return "the data set is being prepared" if story.data is None else "a plan is being chosen"


def _facts(story: Story, console: Console, width: int, most: int) -> Iterator[Text]:
    """Yield plan, reason, prediction and memory, each in at most `most` lines."""
    facts: list[tuple[str, str]] = []
    if story.plan is not None:
        facts.append(("plan", plan_line(story.plan)))
    if story.winner is not None:
        facts.append(("why", story.winner.why))
        facts += [("time", text) for text in _times(story)]
    if story.limits is not None:
        peak = story.peak_bytes
        used = "" if peak is None else f"{peak / MIB:,.0f} MiB measured under this plan, "
        facts.append(("memory", f"{used}{story.limits.memory_mb:,} MiB allowed"))
    for label, text in facts:
        yield from _labelled(label, LABEL, _wrapped(text, console, width - LABEL, most))


def _times(story: Story) -> Iterator[str]:
    """Yield the prediction, and reality beside it."""
    winner, checked = story.winner, story.checked
    if winner is None or winner.predicted_epoch_s is None:
        return
    low, high = winner.predicted_low_s, winner.predicted_high_s
    interval = "" if low is None or high is None else f" ({low:.2f}-{high:.2f})"
    text = f"{winner.predicted_epoch_s:.2f} s an epoch predicted{interval}"
    if checked is not None:
        what = f"epoch {checked.epoch}" if checked.whole else f"the first {checked.steps} steps"
        cause = f", {checked.cause}" if checked.cause else ""
        text += f"; {what} took {checked.measured_s:.2f} s, {checked.deviation:+.1%} beside the prediction{cause}"
    yield text


def _plots(story: Story, width: int, rows: int) -> Iterator[Text]:
    """Yield loss and accuracy side by side, in `rows` rows beneath their names."""
    now = story.progress
    if now is None or rows < LEAST_PLOT:
        return
    end, half = now.epochs * now.steps, (width - 2) // 2
    validation = story.epoch.val_acc if story.epoch else None
    beside = "" if validation is None or width < ROOMY else f", validation {validation:.2%}"
    # Loss falls by orders of magnitude.
    logs = Curve([(x, math.log10(max(1e-9, value))) for x, value in story.loss.points])
    left = _plot(f"loss {now.loss:.4f}", logs, end, half, rows, lambda value: f"{10**value:.2g}", "magenta")
    right = _plot(f"accuracy {now.accuracy:.1%}{beside}", story.accuracy, end, half, rows, lambda value: f"{value:.1%}",
                  "blue")  # fmt: skip
    for one, other in zip(left, right, strict=True):
        one.pad_right(max(0, half + 2 - one.cell_len))
        yield one + other


def _plot(
    title: str, curve: Curve, end: float, width: int, rows: int, say: Callable[[float], str], color: str
) -> Iterator[Text]:
    """Yield a title and the rows of a curve, its greatest and least value beside it where there is room."""
    yield _cut(Text(title), width)
    axis = AXIS if width * 2 >= ROOMY else 0
    low, high = curve.range
    for number, line in enumerate(draw(curve.points, end, width - axis, rows)):
        beside = {0: say(high), rows - 1: say(low)}.get(number, "")
        yield Text(beside.rjust(axis - 1) + " " if axis else "", style="dim") + Text(line, style=color)


def _turns(story: Story, console: Console, width: int, most: int) -> list[Text]:
    """Return the newest turning points that find room in `most` lines, oldest first."""
    found: list[Text] = []
    for event, text in reversed(story.turns):
        style = "yellow" if isinstance(event, JobWarning | MemoryRanOut | JobInterrupted) else ""
        at = time.strftime("%H:%M:%S", time.localtime(event.ts))
        lines = [*_labelled(at, STAMP, _wrapped(text, console, width - STAMP, 2, style=style))]
        if len(found) + len(lines) > most:
            break
        found = [*lines, *found]
    return found


def _labelled(label: str, columns: int, lines: list[Text]) -> Iterator[Text]:
    """Yield lines behind a label of some columns."""
    for number, line in enumerate(lines):
        yield Text(("" if number else label).ljust(columns), style="dim") + line


def _bar(share: float, width: int, color: str) -> Text:
    percent = f" {share:4.0%}"
    room = max(1, width - len(percent))
    full = round(share * room)
    return (
        Text("\N{BOX DRAWINGS HEAVY HORIZONTAL}" * full, style=color)
        + Text("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (room - full), style="dim")
        + Text(percent)
    )


def _wrapped(text: str, console: Console, width: int, most: int, *, style: str = "") -> list[Text]:
    """Return a text in at most `most` lines of `width` columns; what was left out shows as an ellipsis."""
    lines = [*Text(printable(text), style=style).wrap(console, max(1, width))]
    for line in lines:
        line.rstrip()
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], _cut(Text(" ", style=style).join(lines[most - 1 :]), width)]


def _apart(left: Text, right: Text, width: int) -> Text:
    """Return one text at the left and one at the right of a line; the left one gives way."""
    left = _cut(left, max(1, width - right.cell_len - 1))
    return left + Text(" " * max(1, width - left.cell_len - right.cell_len)) + right


def _cut(text: Text, width: int) -> Text:
    text.truncate(max(1, width), overflow="ellipsis")
    return text


def _clock(seconds: float) -> str:
    """Return a span as 0:07, 12:34 or 1:02:03."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
