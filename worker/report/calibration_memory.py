"""Memory against micro-batch, drawn: what was measured, the fitted line, the budget, and what fits."""

from typing import Final

from calibration.result import Finding, MemoryFit, MemoryProbe
from worker.report import calibration_plots as charts
from worker.report import numbers as figures
from worker.report.calibration_plots import Plot
from worker.report.markup import Markup, join, table, tag

_PROBES: Final = {
    "fits": ("circle", "stays within the budget"),
    "over": ("up", "ran, but above the budget"),
    "killed": ("cross", "ran out of memory"),
    "refused": ("barred", "predicted not to fit, and not run"),
}
_PHASES: Final = {"line": "for the line", "1A": "1A, the cap", "1B": "1B, doubling", "1C": "1C, halving"}


def memory(finding: Finding) -> Markup:
    """Return what was found of memory: in words, in a picture, and in a table."""
    fit = finding.memory
    if fit is None:
        return tag("p", "Not measured.")
    cap = ", the whole effective batch, so that more would not be asked for" if fit.capped else ""
    largest = (
        f"The largest micro-batch known to fit is {fit.max_feasible:,}{cap}; chosen was {finding.plan.micro_batch:,}."
        if fit.max_feasible
        else f"No micro-batch is known to fit; chosen was {finding.plan.micro_batch:,}."
    )
    line = (
        f"By the line, a process takes {figures.size(fit.base_bytes)} and {figures.size(fit.sample_bytes)} more for "
        f"each sample; it may have {figures.size(fit.budget_bytes)}."
    )
    if not fit.probes:
        return tag("p", f"{largest} {line}")
    outcomes = {probe.outcome for probe in fit.probes}
    return join(
        tag("p", f"{largest} {line}"),
        charts.legend((*_PROBES[outcome][:1], outcome, outcome, _PROBES[outcome][1]) for outcome in _PROBES
                if outcome in outcomes),
        _picture(fit, largest),
        table(
            "The micro-batches that were looked at",
            ("Samples", "Predicted", "Measured", "Outcome"),
            [
                (f"{probe.micro_batch:,}", _size(probe.predicted_bytes), _size(probe.peak_bytes),
                 join(charts.glyph(_PROBES[probe.outcome][0], probe.outcome), probe.outcome,
                      tag("small", _PHASES[probe.phase])))
                for probe in fit.probes
            ],
            classes=("n", "n", "n", "outcome"),
        ),
    )  # fmt: skip


def _picture(fit: MemoryFit, largest: str) -> Markup:
    heights = [height for probe in fit.probes if (height := probe.peak_bytes or probe.predicted_bytes)]
    measured = max([probe.peak_bytes or 0 for probe in fit.probes])
    # A budget far above everything would press the measurements flat: then it is left to the words.
    shows_budget = 0 < fit.budget_bytes <= 4 * max([measured, 1])
    limit = [float(fit.budget_bytes)] if shows_budget else []
    tallest = max([2.0**20, measured, *limit, *(min(height, 2 * max([measured, *limit])) for height in heights)])
    unit = 2.0**30 if tallest >= 2.0**30 else 2.0**20
    x = charts.linear_scale(float(probe.micro_batch) for probe in fit.probes)
    plot = Plot(x, charts.linear_scale([tallest / unit]), 300)
    parts = [plot.axes(), _fitted(plot, fit, unit)]
    labels = []
    if shows_budget:
        budget = fit.budget_bytes / unit
        parts.append(plot.line((x.low, budget), (x.high, budget), "limit"))
        # Away from where the fitted line meets the budget, for that is where the probes are.
        meets = (fit.budget_bytes - fit.base_bytes) / fit.sample_bytes if fit.sample_bytes else x.low
        end, above = x.high if x.share(meets) < 0.5 else x.low, f"{float(plot.down(budget)) - 6:.1f}"
        labels.append(plot.label(f"budget {figures.size(fit.budget_bytes)}", end, above, "limit"))
    if 0 < fit.max_feasible <= x.high:
        at = plot.across(fit.max_feasible)
        parts.append(tag("line", x1=at, x2=at, y1=charts.TOP, y2=plot.bottom, class_="feasible"))
        labels.append(plot.label(f"{fit.max_feasible:,} fits", fit.max_feasible, plot.bottom - 8, "strong"))
    parts += [*labels, *(_probe(plot, probe, fit, unit) for probe in fit.probes)]
    beyond = "" if shows_budget else f" The budget, {figures.size(fit.budget_bytes)}, is far above the picture."
    return tag(
        "figure",
        tag("figcaption", f"Most memory of the process, {'GiB' if unit == 2.0**30 else 'MiB'}, with the line through "
            f"the two smallest sizes.{beyond}"),
        charts.picture("Memory against micro-batch", largest, *parts, class_="plot", height=plot.height),
        tag("p", "samples in a micro-batch", class_="axis"),
    )  # fmt: skip


def _fitted(plot: Plot, fit: MemoryFit, unit: float) -> Markup:
    """Return the fitted line as far as it runs inside the plot."""
    base, slope, top = fit.base_bytes / unit, fit.sample_bytes / unit, plot.y.high
    # Where the line enters and leaves: at the sides, or where it passes through the floor or the ceiling.
    crossings = [(bound - base) / slope for bound in (plot.y.low, top)] if slope else []
    inside = [
        (x, base + slope * x) for x in (plot.x.low, plot.x.high, *crossings)
        if plot.x.low <= x <= plot.x.high and -1e-9 * top <= base + slope * x <= top * (1 + 1e-9)
    ]  # fmt: skip
    return plot.line(min(inside), max(inside), "fit") if inside else Markup("")


def _probe(plot: Plot, probe: MemoryProbe, fit: MemoryFit, unit: float) -> Markup:
    """Return one probe: as measured, else as predicted, else at the budget that it broke."""
    height = (probe.peak_bytes or probe.predicted_bytes or fit.budget_bytes) / unit
    return charts.mark(_PROBES[probe.outcome][0], probe.outcome, plot.across(probe.micro_batch), plot.down(height))


def _size(value: int | None) -> str:
    return figures.NONE if value is None else figures.size(value)
