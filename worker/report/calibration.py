"""The picture of a calibration: one HTML page without scripts or anything from outside.

What was found comes first, then what it rests on. Every figure of the finding is on the page; what is drawn is also
said in words, and what a colour tells a shape tells too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from calibration.result import Confirmation, Finding, Verdict
from calibration.search.search import GAIN
from worker.report import calibration_plots as charts
from worker.report import numbers as figures
from worker.report.calibration_memory import memory
from worker.report.calibration_plots import Scale
from worker.report.calibration_trials import MEANING, SHAPES, compared, everything, given_up, path, rows_of, trials
from worker.report.markup import Markup, join, table, tag

STYLE: Final = Path(__file__).parent / "templates" / "style.css"
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render(finding: Finding, *, title: str, facts: Mapping[str, str]) -> str:
    """Return the page: `title` says what was calibrated, `facts` what is known of the container."""
    return page(f"Calibration of {title}", _headline(finding, title), *sections(finding, facts))


def sections(finding: Finding, facts: Mapping[str, str]) -> Sequence[Markup]:
    """Return the parts of the page below its headline, to stand on that of a run too."""
    rows = list(rows_of(finding))
    return (
        section("The prediction", _prediction(finding)),
        section("The plan", _plans(finding)),
        section("Confirmation", _confirmation(finding)),
        section("Every trial", trials(rows)),
        section("The path of the search", path(finding, rows)),
        section("Given up, and why", given_up(rows)),
        section("Memory against micro-batch", memory(finding)),
        section("This container", _pairs("What is known of the container", facts)),
        section("The calibration itself", _pairs("What it took", _effort(finding))),
        section("Every figure", everything(finding, rows)),
    )


def page(title: str, *parts: Markup, style: str = "") -> str:
    """Return a whole page of `parts`, with the marks that charts refer to, and `style` after the style of all pages."""
    head = join(
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        tag("title", title),
        tag("style", Markup(STYLE.read_text(encoding="utf-8") + style)),
    )
    body = join(charts.shapes(), tag("main", *parts))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def section(heading: str, *parts: str) -> Markup:
    """Return a part of a page."""
    return tag("section", tag("h2", heading), *parts)


# The headline


def _headline(finding: Finding, title: str) -> Markup:
    predicted, interval = _epoch(finding)
    return tag(
        "header",
        tag("p", "Calibration of ", tag("bdi", title), class_="eyebrow"),
        tag("h1", winner(finding)),
        tag("p", tag("strong", predicted), f" an epoch predicted ({interval})", class_="lead"),
        tag("p", tag("strong", f"Confidence {finding.confidence}."), " ", finding.why),
    )


def winner(finding: Finding) -> str:
    """Return the outcome as a sentence."""
    confirmed, own = finding.confirmation, _own_epoch_s(finding)
    if finding.plan == finding.baseline:
        return "Your own plan stays: no other was proven faster"
    if confirmed is not None and confirmed.proven:
        return f"{figures.ratio(confirmed.ratio)} as fast as your own plan"
    if confirmed is not None:
        return f"{figures.ratio(confirmed.ratio)} as fast as your own plan, which is not proven"
    if own is not None and finding.prediction.epoch_s > 0:
        return f"About {figures.ratio(own / finding.prediction.epoch_s)} as fast as your own plan, not confirmed"
    return "Another plan than your own, not confirmed"


def _epoch(finding: Finding) -> tuple[str, str]:
    predicted = finding.prediction
    return figures.seconds_between(predicted.epoch_s, predicted.low_s, predicted.high_s)


def _own_epoch_s(finding: Finding) -> float | None:
    """Return the predicted seconds of an epoch under the user's own plan."""
    return next((trial.predicted_epoch_s for trial in finding.trials if trial.verdict == "own"), None)


# The prediction


def _prediction(finding: Finding) -> Markup:
    predicted = finding.prediction
    whole, interval = _epoch(finding)
    steps_s = max(0.0, predicted.epoch_s - predicted.validation_s)
    own = None if finding.plan == finding.baseline else _own_epoch_s(finding)

    def like_the_whole(seconds: float) -> str:
        return figures.seconds(seconds, like=predicted.epoch_s)

    rows = [
        (_swatch("steps", "Training steps"), like_the_whole(steps_s),
         f"{figures.counted(finding.steps_per_epoch, 'step')} of {figures.seconds(predicted.step_s)}"),
        (_swatch("validation", "Validation"), like_the_whole(predicted.validation_s), ""),
        (_swatch("", "An epoch, once warm"), tag("strong", whole), f"95 % interval {interval}"),
        (_swatch("warm", "Warming up"), like_the_whole(predicted.warm_s), "once in a process, beyond that"),
    ]  # fmt: skip
    if own is not None:
        rows.append((_swatch("own", "Your own plan"), like_the_whole(own), "an epoch, as first measured"))
    return join(
        _prediction_picture(finding, own, steps_s),
        table("What an epoch is predicted to take", ("", "Takes", ""), rows, classes=("swatches", "n", "why")),
    )


def _swatch(kind: str, words: str) -> Markup:
    """Return what a part of the bar is called, beside a piece of it; the whole has the mark of the interval."""
    rect = tag("rect", x=2, y=3, width=12, height=10, class_=f"bar {kind}")
    return join(charts.glyph_of(rect) if kind else charts.glyph("diamond", "won"), words)


def _prediction_picture(finding: Finding, own: float | None, steps_s: float) -> Markup:
    predicted = finding.prediction
    whole, interval = _epoch(finding)
    extents = [predicted.epoch_s, predicted.high_s, own or 0.0]
    # Warming up may take many times an epoch; then its bar leaves the picture rather than crush it.
    scale = charts.linear_scale([*extents, min(predicted.epoch_s + predicted.warm_s, 1.6 * max(extents))])
    bars = []
    top = 22
    if own is not None:
        bars.append(_words(f"Your own plan, {figures.seconds(own)}", top - 8))
        bars.append(_bar(scale, 0.0, own, top, "own"))
        top += 46
    bars.append(_words(f"This plan, {whole}", top - 8))
    bars.append(_bar(scale, 0.0, steps_s, top, "steps"))
    bars.append(_bar(scale, steps_s, predicted.epoch_s, top, "validation"))
    bars.append(_bar(scale, predicted.epoch_s, predicted.epoch_s + predicted.warm_s, top, "warm"))
    bars.append(charts.across(scale, predicted.low_s, predicted.high_s, top + 26, "interval won"))
    bars.append(charts.mark("diamond", "won", charts.percent(scale.share(predicted.epoch_s)), top + 26))
    description = f"{whole}, 95 % interval {interval}"
    if own is not None:
        description += f"; your own plan {figures.seconds(own)}"
    return charts.picture("An epoch as predicted", description, *bars, class_="bars", height=top + 38)


def _bar(scale: Scale, start: float, end: float, y: int, kind: str) -> Markup:
    x, width = scale.share(start), max(0.0, scale.share(end) - scale.share(start))
    return tag("rect", x=charts.percent(x), width=charts.percent(width), y=y, height=16, class_=f"bar {kind}")


def _words(words: str, y: int) -> Markup:
    return tag("text", words, x="0", y=y)


# The plan


def _plans(finding: Finding) -> Markup:
    own, chosen = finding.baseline, finding.plan
    caption = f"Samples per optimizer step: {finding.batch_size:,}, with either plan"
    if own == chosen:
        rows = [(name, value) for name, value, _ in compared(own, chosen)]
        return table(caption, ("", "Your own plan, kept"), rows, classes=("", "value"))
    differing = [
        (name, value, tag("strong", "● ", chosen_value) if chosen_value != value else chosen_value)
        for name, value, chosen_value in compared(own, chosen)
    ]
    return join(
        table(caption, ("", "Your own", "This plan"), differing, classes=("", "value", "value")),
        tag("p", "● differs from your own.", class_="note"),
    )


# Confirmation


def _confirmation(finding: Finding) -> Markup:
    confirmed = finding.confirmation
    if confirmed is None:
        why = "no other plan had won" if finding.plan == finding.baseline else "there was no time for it"
        return tag("p", f"The fastest plan was not held against your own in a fresh process: {why}.")
    between = figures.ratio_between(confirmed.low, confirmed.high)
    found = "above" if confirmed.proven else "not above"
    words = (
        f"In a fresh process and in turns with your own plan: {figures.ratio(confirmed.ratio)} as fast, "
        f"95 % interval {between}, from {figures.counted(confirmed.pairs, 'pair')}. The lower bound is {found} "
        f"{figures.ratio(GAIN)}, the least gain that counts."
    )
    return join(tag("p", words), _confirmation_picture(confirmed, between))


def _confirmation_picture(confirmed: Confirmation, between: str) -> Markup:
    scale = charts.ratio_scale([confirmed.low, confirmed.high])
    kind: Verdict = "won" if confirmed.proven else "level"
    shown = charts.interval(scale, confirmed.ratio, confirmed.low, confirmed.high, SHAPES[kind], kind)
    drawn = charts.picture(
        "The winner against your own plan", f"{figures.ratio(confirmed.ratio)}, 95 % interval {between}",
        charts.guides(scale), shown, class_="alone", height=36,
    )  # fmt: skip
    return tag("div", charts.ratio_axis(scale), drawn, class_="confirmation")


# The rest, in tables


def _effort(finding: Finding) -> dict[str, str]:
    verdicts = [trial.verdict for trial in finding.trials]
    outcomes = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in MEANING if verdict in verdicts)
    return {
        "Measuring": f"{figures.seconds(finding.calibration_seconds)} of {figures.seconds(finding.budget_s)} allowed",
        "Importing torch": f"{figures.seconds(finding.import_seconds)}, not counted above",
        "Steps to be measured of each plan": f"{finding.samples:,}",
        "Trials": f"{len(verdicts):,}{' (' + outcomes + ')' if outcomes else ''}",
        "Samples in an optimizer step": f"{finding.batch_size:,}",
        "Optimizer steps in an epoch": f"{finding.steps_per_epoch:,}",
    }


def _pairs(caption: str, pairs: Mapping[str, str]) -> Markup:
    return table(caption, ("", ""), list(pairs.items())) if pairs else tag("p", "Nothing is known.")
