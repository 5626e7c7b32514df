"""The tables: figures with their bounds, and the stages."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tools.bench.job.sides import Side
from tools.bench.job.timeline import STAGES, TOLERANCE, MeasuredJob
from tools.bench.record import Cell, Record, judged, samples

FORM: Final = ".2f"


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the first table."""

    label: str
    of: Callable[[Side], list[float]]
    """Seconds; empty where it was not measured."""
    bound: float | None = None


FIGURES: Final = (
    Figure("warm: enqueue to result", lambda side: [job.wall for job in side.warm]),
    Figure("warm: beyond `train_seconds`", lambda side: [job.beyond_training for job in side.warm], 1.0),
    Figure("warm: enqueue to first step", lambda side: [job.first_step for job in side.warm], 0.6),
    Figure("cold: enqueue to result", lambda side: [job.wall for job in side.cold]),
    Figure("cold: beyond `train_seconds`", lambda side: [job.beyond_training for job in side.cold], 7.0),
    Figure("`preflight train`, warm: beyond `train_seconds`", lambda side: side.commands, 2.5),
    Figure("`preflight train` with torch's CPU build, likewise", lambda side: side.cpu_commands, 2.5),
    Figure("calibration of `cnn`", lambda side: side.calibrations, 6.0),
    Figure("calibration of `cnn` with torch's CPU build", lambda side: side.cpu_calibrations, 6.0),
)


def write_bounds(record: Record, was: Side, now: Side) -> None:
    """Print each figure of both versions with its bound."""
    record.head("recipe `fast`, seconds", was.name, now.name, "bound", "")
    for figure in FIGURES:
        before, after = figure.of(was), figure.of(now)
        if not after:
            continue
        bound, reached = figure.bound, ""
        if bound is not None:
            reached = judged(statistics.median(after) <= bound)
        shown = "" if bound is None else f"{bound:g}"
        record.row(figure.label, samples(before, FORM), samples(after, FORM), shown, reached)


def write_stages(record: Record, was: Side, now: Side) -> None:
    """Print where the time of the jobs went."""
    columns = {f"{temper}, {side.name}": jobs for temper, sides in (
        ("warm", ((was, was.warm), (now, now.warm))), ("cold", ((was, was.cold), (now, now.cold))),
    ) for side, jobs in sides}  # fmt: skip
    record.head("recipe `fast`, seconds until", *columns)

    def row(label: str, seconds: Callable[[MeasuredJob], float]) -> None:
        record.row(label, *(samples([seconds(job) for job in jobs], FORM) for jobs in columns.values()))

    for stage in STAGES:
        record.row(stage, *(samples([job.stages[stage] for job in jobs], FORM) for jobs in columns.values()))
    row("sum", lambda job: sum(job.stages.values()))
    row("wall time", lambda job: job.wall)
    row("of it `train_seconds`", lambda job: job.train_seconds)
    row("after it: finished in RQ", lambda job: job.recorded)
    record.row("after it: report ready", *(_report(jobs) for jobs in columns.values()))
    differing = max(abs(sum(job.stages.values()) - job.wall) for jobs in columns.values() for job in jobs)
    record.note(f"Sum and wall time differ by {1e3 * differing:.0f} ms at most; {1e3 * TOLERANCE:.0f} ms end the run.")


def _report(jobs: list[MeasuredJob]) -> Cell:
    seconds = [job.report for job in jobs if job.report is not None]
    return samples(seconds, FORM) if seconds else "before the result"
