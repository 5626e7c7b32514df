"""Numbers for people: three digits, or fewer where the interval is wide, and a fitting unit."""

import math
from typing import Final

MIB: Final = 1 << 20
"""Bytes of a mebibyte."""
THIN: Final = "\u202f"
"""Space between a number and its unit: narrow, and no line is broken there."""
NONE: Final = "–"  # noqa: RUF001
"""Mark in place of a figure that is missing."""
_SECONDS: Final = (
    (3 * 3600.0, 3600.0, "h"), (180.0, 60.0, "min"), (0.9995, 1.0, "s"), (0.9995e-3, 1e-3, "ms"), (0.0, 1e-6, "µs"),
)  # fmt: skip
"""Least seconds that are shown in a unit, seconds of the unit, and its name."""
ROUGH: Final = 1.5
"""Ratio of an interval's ends above which no digit of the figure between them counts."""
PLAIN: Final = str.maketrans({THIN: " ", "\u2060": None, "\u2013": "-", "\u00d7": "x", "\u00b5": "u", "\u221e": "inf"})
NARROW: Final = 0.2
"""Width of an interval of ratios whose ends two digits may not tell apart."""
_BYTES: Final = ((1023.5 * 2**20, 2.0**30, "GiB"), (0.0, 2.0**20, "MiB"))


def number(value: float, decimals: int | None = None) -> str:
    """Return `value` with three significant digits, or with `decimals` decimals; ∞ where no float can hold it."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.1e}"
    return f"{value:,.{_decimals(value) if decimals is None else decimals}f}"


def seconds(value: float, *, like: float | None = None) -> str:
    """Return a duration: 4.12 s; in the unit and as fine as the one that it is `like`, to stand in a column with it."""
    size, unit = _unit(like or value)
    return f"{number(value / size, _decimals(like / size) if like else None)}{THIN}{unit}"


def seconds_between(value: float, low: float, high: float) -> tuple[str, str]:
    """Return a duration and its interval in the same unit, no finer than the interval allows: 4.1 s, 3.9-4.3."""
    size, unit = _unit(value)
    half = (high - low) / 2 / size
    decimals = _decimals(value / size)
    if 0 < half < math.inf:
        decimals = min(decimals, max(0, math.ceil(-math.log10(half))))
    return f"{number(value / size, decimals)}{THIN}{unit}", _between(low / size, high / size, decimals)


def plain(text: str) -> str:
    """Return figures with the characters that every terminal and log has."""
    return text.translate(PLAIN)


def duration(value: float, *, like: float | None = None) -> str:
    """Return a measured duration as `seconds`, in plain characters: 4.12 s, 12.3 min."""
    return plain(seconds(value, like=like))


def about(value: float) -> str:
    """Return a rough duration as people say it: 0.3 s, 35 s, 4 min, 2 h 23 min."""
    if value < 99.5:
        length, unit = _unit(value)
        return plain(f"{two_digits(value / length) if value else '0'} {unit}")
    if not value < 1e9:
        return plain(seconds(value))
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min".replace(" 0 min", "")


def predicted(value: float, low: float | None, high: float | None, of: str = "") -> str:
    """Return a predicted duration and its 95 % interval, no finer than that.

    4.1 s (3.9 to 4.3); about 35 min (4 min to 2 h 23 min; rough). `of` follows the duration, such as " an epoch".
    """
    if low is None or high is None:
        return f"about {about(value)}{of}"
    if high > ROUGH * low:
        return f"about {about(value)}{of} ({about(low)} to {about(high)}; rough)"
    shown, interval = map(plain, seconds_between(value, low, high))
    return f"{shown}{of} ({interval.replace('-', ' to ')})"


def memory(value: float) -> str:
    """Return bytes in plain characters: 412 MiB, 1.62 GiB."""
    return plain(size(value))


def ratio(value: float) -> str:
    """Return how many times: 1.52x."""
    return f"{number(value, _ratio_decimals(value))}×"  # noqa: RUF001


def rough_ratios(low: float, high: float) -> str:
    """Return an interval of which little is known: 1.8x to 5.4x."""
    return rough_interval(low, high, "×")  # noqa: RUF001


def ratio_between(low: float, high: float) -> str:
    """Return an interval of ratios: 1.48-1.56."""
    return _between(low, high, _ratio_decimals(high))


def size(value: float) -> str:
    """Return bytes: 412 MiB, 1.62 GiB."""
    divisor, unit = next((divisor, unit) for least, divisor, unit in _BYTES if abs(value) >= least)
    return f"{number(value / divisor)}{THIN}{unit}"


def share(value: float) -> str:
    """Return a share in percent: 99.14 %."""
    return f"{100 * value:.2f}{THIN}%"


def plural(count: int, noun: str) -> str:
    """Return 1 trial, 2 trials."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_age(seconds: float) -> str:
    """Return a duration in the largest unit of which it has at least two, or in seconds."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _between(low: float, high: float, decimals: int) -> str:
    # A word joiner on either side of the dash: an interval is not broken in the middle.
    return f"{number(low, decimals)}\u2060–\u2060{number(high, decimals)}"  # noqa: RUF001


def _unit(value: float) -> tuple[float, str]:
    if not value:
        return 1.0, "s"
    return next((size, unit) for least, size, unit in _SECONDS if abs(value) >= least)


def _decimals(value: float) -> int:
    """Return the decimals that three significant digits take; 0 for zero, and where no float can hold it."""
    if not value or math.isinf(value):
        return 0
    power = int(f"{value:.2e}".partition("e")[2])  # of the rounded value: 0.9996 is 1.00
    return min(6, max(0, 2 - power))


def _ratio_decimals(value: float) -> int:
    return 2 if 0.1 <= value < 10 else _decimals(value)


def rough_interval(low: float, high: float, unit: str = "x") -> str:
    """Return an interval of ratios with two digits, or as many as tell its ends apart: 1.8x to 5.4x."""
    if high - low < NARROW:
        return f"{low:.2f}{unit} to {high:.2f}{unit}"
    return f"{two_digits(low)}{unit} to {two_digits(high)}{unit}"


def two_digits(value: float) -> str:
    """Return a positive value with two significant digits and without an exponent: 0.012, 1.1, 110."""
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"
