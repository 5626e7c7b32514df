"""Plots of a calibration: the speed of each trial, and memory against micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from calibration.races.evaluation import GAIN
from calibration.result import Confirmation, MemoryFit, MemoryProbe, Trial
from preflight import numbers
from worker.features.report.calibration_trials import number_trials
from worker.features.report.svg import ACCENT, BAD, HAIR, INK, OWN, SOFT, draw_svg

MAX_RATIO: Final = 8.0
"""Ratios above this, or below its inverse, are drawn as arrows at the edge."""
MARKERS: Final = {"fits": "o", "over": "^", "killed": "x", "refused": "_"}
MAX_TRIALS: Final = 40
"""Rows that a plot has room for; the table has all."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio with its interval, as a row of the plot."""

    label: str
    ratio: float
    low: float | None
    high: float | None
    won: bool
    sure: bool = True
    """False: something else used the processors, and only the interval is known."""

    @property
    def speed(self) -> str:
        """The ratio in words."""
        if self.sure or self.low is None or self.high is None:
            return numbers.ratio(self.ratio)
        return numbers.rough_ratios(self.low, self.high)


def speed_of_trials(trials: Sequence[Trial], confirmation: Confirmation | None = None, *, sure: bool = True) -> Markup:
    """Return the ratio of each measured trial and of the confirmation, with intervals, on a logarithmic axis.

    The confirmation has the headline's figures; where it is not `sure`, only its interval is drawn.
    Returns nothing where no trial was measured.
    """
    rows = [
        Bar(
            f"{number} {trial.knob.replace('_', ' ')}",
            trial.ratio,
            trial.low,
            trial.high,
            trial.verdict == "won",
            not trial.disturbed,
        )
        for number, trial in number_trials(trials)
        if trial.ran and trial.ratio is not None
    ][:MAX_TRIALS]
    if not rows:
        return Markup("")
    won = ", ".join(f"trial {row.label.split()[0]} {row.speed}" for row in rows if row.won)
    if (known := confirmation) is not None:
        name = "confirmed" if known.fresh_process else "together"
        rows.append(Bar(name, known.ratio, known.low, known.high, known.proven, sure))
    return draw_svg(
        "trials", 50 + 16 * len(rows), "Speed of each trial", f"Won: {won or 'none'}", partial(_draw_bars, rows)
    )


def _draw_bars(rows: Sequence[Bar], figure: Figure) -> None:
    values = [clip(value) for row in rows for value in (row.low, row.ratio, row.high) if value is not None]
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.grid(visible=False, axis="y")
    axes.axvline(1.0, color=SOFT, linewidth=1.0)
    axes.axvline(GAIN, color=SOFT, linewidth=1.0, linestyle=(0, (2, 3)))
    for place, row in enumerate(rows):
        colour = ACCENT if row.won else OWN
        if row.low is not None and row.high is not None:
            axes.plot([clip(row.low), clip(row.high)], [place, place], color=colour)
        if row.sure or row.low is None:
            axes.plot([clip(row.ratio)], [place], _marker(row), color=colour)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set(xlim=(min([*values, 0.9]) / 1.05, max([*values, 1.1]) * 1.05), ylim=(len(rows) - 0.5, -0.5))
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 7.0), numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.ratio(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="y", length=0, labelcolor=INK)


def clip(ratio: float) -> float:
    """Return the ratio, or the edge of the plot beyond which it lies."""
    return min(MAX_RATIO, max(1 / MAX_RATIO, ratio))


def _marker(row: Bar) -> str:
    if row.ratio != clip(row.ratio):
        return ">" if row.ratio > 1 else "<"
    return "D" if row.won else "o"


def memory_of_micro_batches(fit: MemoryFit) -> Markup:
    """Return measured, else predicted bytes of each probe, the fitted line and the limit."""
    heights = [_height(probe, fit) for probe in fit.probes]
    highest = max(heights)
    limit = fit.budget_bytes if fit.budget_bytes <= 4 * highest else None
    """A limit far above all probes would press them flat."""
    unit, name = (2.0**30, "GiB") if highest >= 2.0**30 else (2.0**20, "MiB")
    right = max(probe.micro_batch for probe in fit.probes) * 1.05

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_title(f"Peak memory, {name}")
        axes.plot([0, right], [fit.base_bytes / unit, (fit.base_bytes + fit.sample_bytes * right) / unit], color=HAIR)
        if limit is not None:
            axes.axhline(limit / unit, color=SOFT, linewidth=1.0, linestyle=(0, (4, 3)))
        for probe, height in zip(fit.probes, heights, strict=True):
            colour = ACCENT if probe.outcome == "fits" else BAD
            axes.plot([probe.micro_batch], [height / unit], MARKERS[probe.outcome], color=colour, markersize=6)
        axes.set(xlim=(0, right), ylim=(0, 1.1 * max(highest, limit or 0) / unit), xlabel="samples in a micro-batch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))

    return draw_svg("memory", 200, "Memory against micro-batch", f"{fit.max_feasible:,} is known to fit", draw)


def _height(probe: MemoryProbe, fit: MemoryFit) -> float:
    return float(probe.peak_bytes or probe.predicted_bytes or fit.budget_bytes or 1)
