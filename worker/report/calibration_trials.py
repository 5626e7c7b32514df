"""The trials of a calibration, drawn: each with its interval, the path they made, and what was given up."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from calibration.result import Finding, Trial, Verdict
from calibration.search.search import GAIN
from training.config.plan import Plan
from worker.report import calibration_plots as charts
from worker.report import numbers as figures
from worker.report.calibration_plots import Plot, Scale
from worker.report.markup import Markup, join, table, tag

SHAPES: Final[Mapping[Verdict, str]] = {
    "own": "square", "won": "diamond", "level": "circle", "lost": "down", "dropped": "down",
    "rejected": "barred", "failed": "cross", "skipped": "dash",
}  # fmt: skip
MEANING: Final[Mapping[Verdict, str]] = {
    "own": "your own plan, measured first",
    "won": "faster, and the best plan from then on",
    "level": "not proven faster",
    "lost": "slower",
    "dropped": "surely slower, given up early",
    "rejected": "its gradients differ from those of float32",
    "failed": "its process was killed or broke",
    "skipped": "never run",
}
_GIVEN_UP: Final[tuple[Verdict, ...]] = ("rejected", "failed", "dropped", "skipped")


def compared(before: Plan, after: Plan) -> list[tuple[str, str, str]]:
    """Return every part of a plan by name, as it was and as it is."""
    return [
        (field.name.replace("_", " "), _value(getattr(before, field.name)), _value(getattr(after, field.name)))
        for field in fields(Plan)
    ]


def _value(value: str | int | bool | None) -> str:
    match value:
        case None:
            return figures.NONE
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
    return value.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Row:
    """A trial with its number, and the best plan before it."""

    number: int
    trial: Trial
    before: Plan

    @property
    def differences(self) -> str:
        """What it changes of the best plan before it."""
        if self.trial.verdict == "own":
            return "your own plan"
        changed = (
            f"{'' if name == self.trial.knob.replace('_', ' ') else name + ' '}{was} → {value}"
            for name, was, value in compared(self.before, self.trial.plan)
            if was != value
        )
        return ", ".join(changed) or "unchanged"

    @property
    def asides(self) -> str:
        """The note, and what else is to be known of the figures."""
        disturbed = "the processors were not free" if self.trial.disturbed else ""
        kept = "measured by an earlier calibration" if self.trial.kept else ""
        return "; ".join(aside for aside in (self.trial.note, disturbed, kept) if aside)

    @property
    def named(self) -> str:
        """Return it in a few words."""
        return f"{self.number}, {_knob(self.trial)}: {self.differences}"


def rows_of(finding: Finding) -> Iterator[Row]:
    """Return the trials, numbered, each with the best plan before it."""
    best = finding.baseline
    for number, trial in enumerate(finding.trials, 1):
        yield Row(number, trial, best)
        if trial.verdict in ("own", "won"):
            best = trial.plan


def _knob(trial: Trial) -> str:
    return trial.knob.replace("_", " ")


def trials(rows: Sequence[Row]) -> Markup:
    """Return a row for each trial, with its ratio drawn on a scale that they share."""
    if not rows:
        return tag("p", "No trial was made.")
    made = [row.trial for row in rows]
    drawn = [value for trial in made for value in (trial.ratio, trial.low, trial.high) if value is not None]
    scale = charts.ratio_scale(drawn)
    caption = (
        "How many times as fast as the best plan before it, with its 95 % interval. Solid line: as fast; "
        f"dashed line: {figures.ratio(GAIN)}, the least gain that counts."
    )
    headings = (
        tag("th", "Trial", scope="col", role="columnheader", class_="what"),
        tag("th", charts.ratio_axis(scale), scope="col", role="columnheader", class_="plot"),
        tag("th", "Ratio", scope="col", role="columnheader", class_="n"),
        tag("th", "Outcome", scope="col", role="columnheader", class_="outcome"),
    )
    # Said in roles too, since a narrow screen lays the rows out as blocks, and some readers then see no table.
    return join(
        charts.legend((SHAPES[verdict], verdict, verdict, meaning) for verdict, meaning in MEANING.items()
                if any(trial.verdict == verdict for trial in made)),
        tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", *headings, role="row"), role="rowgroup"),
            tag("tbody", *(_trial(row, scale) for row in rows), role="rowgroup"),
            class_="forest", role="table",
        ),
    )  # fmt: skip


def _trial(row: Row, scale: Scale) -> Markup:
    trial = row.trial
    shape = SHAPES[trial.verdict]
    between = "" if trial.low is None or trial.high is None else figures.ratio_between(trial.low, trial.high)
    shown = [charts.guides(scale)]
    if trial.verdict == "own":
        shown.append(charts.mark(shape, "own", charts.percent(scale.share(1.0)), "50%"))
        said = "measured first; the others are held against it"
    elif trial.ratio is None:
        said = f"no ratio, {trial.verdict}"
    else:
        shown.append(charts.interval(scale, trial.ratio, trial.low, trial.high, shape, trial.verdict))
        said = f"{figures.ratio(trial.ratio)}{', 95 % interval ' + between if between else ''}, {trial.verdict}"
    ratio = "" if trial.ratio is None else figures.ratio(trial.ratio)
    plot = "plot" if ratio else "plot bare"
    return tag(
        "tr",
        tag(
            "th",
            tag("span", f"{row.number}", class_="number"), tag("b", _knob(trial)), " ",
            tag("span", row.differences, class_="change"),
            tag("small", row.asides) if row.asides else "",
            scope="row", role="rowheader", class_="what",
        ),
        tag("td", charts.picture(f"Trial {row.named}", said, *shown, class_="row"), role="cell", class_=plot),
        tag("td", ratio, tag("small", between) if between else "", role="cell", class_="n"),
        tag("td", charts.glyph(shape, trial.verdict), trial.verdict, role="cell", class_="outcome"),
        class_=trial.verdict, role="row",
    )  # fmt: skip


def path(finding: Finding, rows: Sequence[Row]) -> Markup:
    """Return the best plan so far against time, and each trial where it ended."""
    known = [seconds for row in rows if (seconds := row.trial.predicted_epoch_s)]
    if not known:
        return tag("p", "No trial came far enough to predict an epoch.")
    end = max(row.trial.at + row.trial.seconds for row in rows)
    across = [end, finding.budget_s] if finding.budget_s <= 1.6 * end else [end]
    plot = Plot(charts.linear_scale(across), charts.log_scale(known), 300, strip=20)
    parts = [plot.axes()]
    if finding.budget_s in across and finding.budget_s:
        at = plot.across(finding.budget_s)
        parts.append(tag("line", x1=at, x2=at, y1=charts.TOP, y2=plot.bottom, class_="limit"))
        parts.append(plot.label("budget", finding.budget_s, charts.TOP + 8, "limit"))
    parts.append(_incumbent(plot, rows, end))
    parts += [_step(plot, row) for row in rows]
    best = min((row for row in rows if row.trial.predicted_epoch_s), key=lambda row: row.trial.predicted_epoch_s or 0.0)
    description = (
        f"{figures.counted(len(rows), 'trial')} in {figures.seconds(end)}; the fastest was trial {best.named}, "
        f"{figures.seconds(best.trial.predicted_epoch_s or 0.0)} an epoch"
    )
    return tag(
        "figure",
        tag("figcaption", "Predicted seconds of an epoch, logarithmic: the step line is the best plan so far. A pale "
            "line is as long as a trial took, with its outcome at the end; just above the axis are those that came to "
            "no figure. Numbers are those of the trials."),
        charts.picture("The path of the search", description, *parts, class_="plot", height=plot.height),
        tag("p", "seconds since the search began", class_="axis"),
    )  # fmt: skip


def _incumbent(plot: Plot, rows: Sequence[Row], end: float) -> Markup:
    """Return the step line of the best plan so far."""
    best: tuple[float, float] | None = None
    parts = []
    for trial in (row.trial for row in rows if row.trial.verdict in ("own", "won")):
        if not trial.predicted_epoch_s:
            continue
        at = trial.at + trial.seconds
        if best is not None:
            parts.append(plot.line(best, (at, best[1]), "best"))
            parts.append(plot.line((at, best[1]), (at, trial.predicted_epoch_s), "best"))
        best = (at, trial.predicted_epoch_s)
    if best is not None:
        parts.append(plot.line(best, (max(end, best[0]), best[1]), "best"))
    return join(*parts)


def _step(plot: Plot, row: Row) -> Markup:
    """Return one trial of the path; just above the axis where it came to no figure."""
    trial = row.trial
    start, end = plot.across(trial.at), plot.across(trial.at + trial.seconds)
    y = plot.down(trial.predicted_epoch_s) if trial.predicted_epoch_s else f"{plot.bottom - 8}"
    kind = trial.verdict
    took = tag("line", x1=start, x2=end, y1=y, y2=y, class_=f"took {kind}")
    number = ""
    if kind in ("own", "won"):
        number = tag("text", f"{row.number}", x=end, y=y, dx="-8", dy="16", class_="y strong")
    return join(took, charts.mark(SHAPES[kind], kind, end, y), number)


def given_up(rows: Sequence[Row]) -> Markup:
    """Return the trials that were not measured to their end, with the reasons."""
    listed = [row for verdict in _GIVEN_UP for row in rows if row.trial.verdict == verdict]
    if not listed:
        return tag("p", "Nothing: every trial was measured to its end.")
    return table(
        "What was not measured to its end",
        ("Trial", "Outcome and reason"),
        [(row.named, join(_outcome(row.trial.verdict), tag("small", _why(row)))) for row in listed],
    )


def _outcome(verdict: Verdict) -> Markup:
    return join(charts.glyph(SHAPES[verdict], verdict), verdict)


def _why(row: Row) -> str:
    trial = row.trial
    ratio = "" if trial.ratio is None else f"{figures.ratio(trial.ratio)} as fast"
    if trial.ratio is not None and trial.low is not None and trial.high is not None:
        ratio += f" ({figures.ratio_between(trial.low, trial.high)})"
    return "; ".join(part for part in (row.asides, ratio) if part) or MEANING[trial.verdict]


def everything(finding: Finding, rows: Sequence[Row]) -> Markup:
    """Return every figure of every trial."""
    headings = (
        "Trial", "Outcome", "Began", "Took", "Steps", "A step", "Samples/s", "An epoch", "Ratio", "95 %",
        "Fetching", "Memory",
    )  # fmt: skip
    body = [_all_figures(row, finding.batch_size) for row in rows]
    shown = table("All that was measured of each trial", headings, body, classes=("", "outcome", *["n"] * 10))
    return tag("div", shown, class_="wide", tabindex=0, role="region", aria_label="All figures, scrolls sideways")


def _all_figures(row: Row, batch_size: int) -> tuple[str, ...]:
    trial = row.trial
    return (
        f"{row.number} {_knob(trial)}",
        _outcome(trial.verdict),
        figures.seconds(trial.at),
        figures.seconds(trial.seconds),
        f"{trial.steps:,}",
        figures.NONE if trial.step_s is None else figures.seconds(trial.step_s),
        figures.number(batch_size / trial.step_s) if trial.step_s else figures.NONE,
        figures.NONE if trial.predicted_epoch_s is None else figures.seconds(trial.predicted_epoch_s),
        figures.NONE if trial.ratio is None else figures.ratio(trial.ratio),
        figures.NONE if trial.low is None or trial.high is None else figures.ratio_between(trial.low, trial.high),
        figures.NONE if trial.fetch_share is None else f"{trial.fetch_share:.1%}",
        figures.NONE if trial.peak_bytes is None else figures.size(trial.peak_bytes),
    )
