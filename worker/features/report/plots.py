"""Plots of a training: learning curves, confusion matrix, reliability, time per phase, prediction."""

import math
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from preflight import numbers
from training.artifacts.metrics import EvaluationMetrics
from training.prediction import Prediction
from training.step.train_state import EpochDone
from worker.features.report.svg import ACCENT, INK, OWN, PALE, SOFT, draw_svg

MAX_POINTS: Final = 512
MAX_LABEL: Final = 14
"""Most characters of a class name next to a confusion matrix."""
MAX_NUMBERED: Final = 16
"""Classes up to which a confusion matrix has numbers in its cells."""


def learning(history: Sequence[EpochDone], losses: Sequence[tuple[float, float]]) -> Markup:
    """Return training loss and validation accuracy by epoch; `losses` are (epochs done, loss) by window."""
    shown = _thinned(history)
    validated = [(done.epoch, done.val_acc) for done in shown if done.val_acc is not None]

    def draw(figure: Figure) -> None:
        above, *rest = figure.subplots(2 if validated else 1, sharex=True, squeeze=False)[:, 0]
        above.set_title("Training loss")
        if losses:
            above.plot(*zip(*losses, strict=True), color=PALE, linewidth=1.2)
        above.plot([done.epoch for done in shown], [done.loss for done in shown], color=ACCENT, marker=_marker(shown))
        for below in rest:
            below.set_title("Validation accuracy")
            below.plot(*zip(*validated, strict=True), color=ACCENT, marker=_marker(shown))
            below.yaxis.set_major_formatter(PercentFormatter(1.0, symbol="\u202f%"))
        last: Axes = rest[0] if rest else above
        last.set_xlim(0 if losses else 0.5, max(1, len(history)) + (0.04 if losses else 0.5) * len(history) ** 0.5)
        last.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, min_n_ticks=1))
        last.set_xlabel("epoch")

    end = history[-1]
    accuracy = "" if end.val_acc is None else f"; validation accuracy {numbers.share(end.val_acc)}"
    words = f"After {numbers.plural(len(history), 'epoch')}: training loss {end.loss:.4f}{accuracy}"
    return draw_svg("learning", 260 if validated else 160, "Learning curves", words, draw)


def confusion(outcome: EvaluationMetrics, names: Sequence[str] = ()) -> Markup:
    """Return the confusion matrix; `names`: names of the classes, if they have any besides their numbers."""
    cells = [
        (truth, predicted, count)
        for truth, row in enumerate(outcome.confusion) for predicted, count in enumerate(row) if count
    ]  # fmt: skip
    most = max([count for truth, predicted, count in cells if truth != predicted], default=1)
    classes = len(outcome.classes)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.grid(visible=False)
        for truth, predicted, count in sorted(cells, key=lambda cell: -cell[2])[: MAX_POINTS * 4]:
            right = truth == predicted
            strength = 0.3 if right else 0.15 + 0.5 * count / most
            corner = (predicted - 0.5, truth - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, color=OWN if right else ACCENT, alpha=strength, linewidth=0))
            if classes <= MAX_NUMBERED:
                size = 8.5 if count < 1000 else 7.0
                axes.text(predicted, truth, str(count), ha="center", va="center", fontsize=size)
        axes.set(xlim=(-0.5, classes - 0.5), ylim=(classes - 0.5, -0.5), xlabel="predicted class", ylabel="true class")
        axes.set_aspect("equal")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, nbins=MAX_NUMBERED, steps=[1, 2, 5, 10]))
            axis.set_tick_params(length=0)
        if names and classes <= MAX_NUMBERED:
            short = [name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…" for name in names]
            axes.set_xticks(range(classes), short, rotation=90 if max(map(len, short)) > 2 else 0, parse_math=False)
            axes.set_yticks(range(classes), short, parse_math=False)

    words = f"{outcome.samples - outcome.right:,} of {outcome.samples:,} test samples are wrong"
    return draw_svg("confusion", 284, "Confusion matrix", words, draw)


def reliability(outcome: EvaluationMetrics) -> Markup:
    """Return accuracy against confidence, and how many samples each bin has."""
    held = [each for each in outcome.bins if each.samples]
    width = outcome.bins[0].high - outcome.bins[0].low
    middles = [(each.low + each.high) / 2 for each in held]

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, sharex=True, height_ratios=(3, 1))
        above.set_title("Accuracy")
        above.bar(middles, [each.accuracy for each in held], width=0.88 * width, color=PALE)
        above.plot([0, 1], [0, 1], color=SOFT, linestyle=(0, (4, 3)), linewidth=1.0)
        above.plot([each.confidence for each in held], [each.accuracy for each in held], "o", color=ACCENT)
        above.set_ylim(0, 1.05)
        above.yaxis.set_major_formatter(PercentFormatter(1.0, symbol="\u202f%"))
        below.set_title("Samples")
        below.bar(middles, [each.samples for each in held], width=0.88 * width, color=OWN)
        below.set_yscale("log")
        below.set_yticks([10.0**power for power in range(0, len(str(outcome.samples)), 2)])
        below.set_ylim(bottom=0.8)
        below.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        below.minorticks_off()
        below.set(xlim=(0, 1.02), xlabel="confidence")
        below.xaxis.set_major_formatter(PercentFormatter(1.0, symbol="\u202f%"))

    words = f"Expected calibration error {numbers.share(outcome.calibration_error)}"
    return draw_svg("reliability", 270, "Reliability diagram", words, draw)


def seconds(parts: Sequence[tuple[str, float]]) -> Markup:
    """Return the seconds of each phase as bars."""
    total = sum(spent for _, spent in parts)
    names, spent = [name for name, _ in parts], [each for _, each in parts]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.grid(visible=False, axis="y")
        axes.barh(names, spent, color=ACCENT, height=0.62)
        for number, each in enumerate(spent):
            axes.annotate(numbers.seconds(each), (each, number), (4, 0), textcoords="offset points", va="center")
        axes.set(xlim=(0, max(spent) * 1.28 or 1.0), xlabel="seconds")
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0, labelcolor=INK)

    words = ", ".join(f"{name} {numbers.seconds(each)}" for name, each in parts)
    return draw_svg("seconds", 50 + 22 * len(parts), f"{numbers.seconds(total)} in all", words, draw)


def prediction(history: Sequence[EpochDone], predicted: Prediction) -> Markup:
    """Return measured and predicted seconds of each epoch."""
    shown = _thinned(history)
    epochs = [done.epoch for done in shown]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        edges = [0.5, 1.5, len(history) + 0.5] if len(history) > 1 else [0.5, 1.5]
        warm = [predicted.warm_s, *[0.0] * (len(edges) - 2)]
        low, middle, high = ([value + extra for extra in warm] for value in
                             (predicted.low_s, predicted.epoch_s, predicted.high_s))  # fmt: skip
        axes.stairs(high, edges, baseline=low, color=PALE, alpha=0.6, fill=True, linewidth=0, label="95 % interval")
        axes.stairs(middle, edges, baseline=None, color=SOFT, linestyle=(0, (4, 3)), linewidth=1.2, label="predicted")
        axes.plot(epochs, [done.seconds for done in shown], color=ACCENT, marker=_marker(shown), label="measured")
        axes.set(xlim=(0.5, len(history) + 0.5), xlabel="epoch")
        axes.set_title("Seconds of an epoch")
        axes.set_ylim(0, 1.15 * max(high + [done.seconds for done in shown]))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, min_n_ticks=1))
        figure.legend(loc="outside lower left", ncols=3, columnspacing=1.0, handlelength=1.4)

    words = f"Predicted {numbers.seconds(predicted.epoch_s)} an epoch, measured {numbers.seconds(history[-1].seconds)}"
    return draw_svg("prediction", 190, "Predicted and measured time", words, draw)


def _thinned(history: Sequence[EpochDone]) -> Sequence[EpochDone]:
    """Return as many epochs as a picture has room for, the last one among them."""
    return history[:: -math.ceil(len(history) / MAX_POINTS)][::-1]


def _marker(shown: Sequence[EpochDone]) -> str:
    return "o" if len(shown) <= 40 else ""
