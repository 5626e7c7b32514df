"""The chart of the matrix: measured against predicted seconds of an epoch, each with its 95 % interval, as SVG."""

import math
from collections.abc import Callable
from typing import Final

from tools.bench.calibration.matrix import findings
from tools.bench.calibration.matrix.findings import Finding

SIDE: Final = 480
MARGIN: Final = 60
TICKS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
COLORS: Final = {"cnn": "#3b6fb6", "resnet18": "#b4632a", "own_task": "#3f8a4f"}
BUSY: Final = "#7a7a7a"


def draw_matrix() -> str:
    """Return the chart of the last result, logarithmic on both axes; a dot on the line was predicted exactly."""
    drawn = [finding for finding in findings.load().runs if finding.calibrated.deviation is not None]
    ends = [second for finding in drawn for second in _seconds(finding)]
    least, most = math.log(min(ends) * 0.9), math.log(max(ends) * 1.1)

    def place(seconds: float) -> float:
        return (math.log(seconds) - least) / (most - least) * (SIDE - 2 * MARGIN)

    parts = _frame(place, math.exp(least), math.exp(most))
    for finding in drawn:
        low, high, predicted, measured = map(place, _seconds(finding))
        color = BUSY if finding.busy else COLORS[finding.workload]
        y = SIDE - MARGIN - measured
        parts.append(f'<path d="M{MARGIN + low:.1f} {y:.1f}H{MARGIN + high:.1f}" stroke="{color}" opacity=".5"/>')
        parts.append(
            f'<circle cx="{MARGIN + predicted:.1f}" cy="{y:.1f}" r="4" fill="{color}">'
            f"<title>{finding.cell.name}: {finding.calibrated.deviation:+.1%}</title></circle>"
        )
    parts += _legend()
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIDE} {SIDE}" font-family="sans-serif"'
        f' font-size="12">\n<rect width="{SIDE}" height="{SIDE}" fill="white"/>\n{body}\n</svg>\n'
    )


def _seconds(finding: Finding) -> tuple[float, float, float, float]:
    """Return both ends of the interval, the prediction and the measurement."""
    run = finding.calibrated
    return run.low_s or 0.1, run.high_s or 0.1, run.predicted_s or 0.1, run.measured_s or 0.1


def _frame(place: Callable[[float], float], least: float, most: float) -> list[str]:
    """Return axes, ticks, and the line on which measured is as predicted."""
    end, bottom = SIDE - MARGIN, SIDE - MARGIN
    parts = [
        f'<path d="M{MARGIN} {MARGIN}V{bottom}H{end}" stroke="black" fill="none"/>',
        f'<path d="M{MARGIN} {bottom}L{end} {MARGIN}" stroke="#999" stroke-dasharray="4"/>',
        f'<text x="{SIDE / 2}" y="{SIDE - 16}" text-anchor="middle">predicted seconds, 95 % interval</text>',
        f'<text transform="translate(18 {SIDE / 2}) rotate(-90)" text-anchor="middle">measured seconds</text>',
    ]
    for tick in (tick for tick in TICKS if least <= tick <= most):
        at = place(tick)
        parts.append(f'<text x="{MARGIN + at:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{MARGIN - 6}" y="{bottom - at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    return parts


def _legend() -> list[str]:
    """Return the legend of the colours."""
    entries = [*COLORS.items(), ("cnn beside one busy neighbour", BUSY)]
    return [
        f'<text x="{MARGIN + 12}" y="{MARGIN + 4 + 16 * number}" fill="{color}">{name}</text>'
        for number, (name, color) in enumerate(entries)
    ]
