"""Numbers of a report."""

import math

import pytest
from support.calibration.odd_findings import MIB
from support.web.pages import plain

from preflight import numbers


@pytest.mark.parametrize(("shown", "words"), [
    (numbers.seconds(0.0), "0 s"), (numbers.seconds(0.00042), "420 µs"), (numbers.seconds(0.0713), "71.3 ms"),
    (numbers.seconds(0.99961), "1.00 s"), (numbers.seconds(59.94), "59.9 s"), (numbers.seconds(600.0), "10.0 min"),
    (numbers.seconds(0.14, like=4.12), "0.14 s"), (numbers.seconds(40_000.0), "11.1 h"),
    (numbers.seconds(-2.5), "-2.50 s"),
    (numbers.size(412.4 * MIB), "412 MiB"),
    (numbers.size(1010 * MIB), "1,010 MiB"), (numbers.size(1659 * MIB), "1.62 GiB"), (numbers.size(0.0), "0 MiB"),
    (numbers.ratio(1.0), "1.00x"), (numbers.ratio(12.34), "12.3x"), (numbers.ratio(0.0123), "0.0123x"),
    (numbers.number(12_345.6), "12,346"), (numbers.number(1e300), "1.0e+300"), (numbers.number(0.0), "0"),
    (numbers.ratio(math.inf), "∞x"), (numbers.number(-math.inf), "-∞"), (numbers.seconds(1e308), "2.8e+304 h"),
    (numbers.plural(1, "pair"), "1 pair"), (numbers.plural(1200, "pair"), "1,200 pairs"),
])  # fmt: skip
def test_numbers_have_three_digits_and_a_unit(shown: str, words: str) -> None:
    assert plain(shown) == words


@pytest.mark.parametrize(("value", "low", "high", "words"), [
    (4.123, 3.931, 4.312, ("4.1 s", "3.9-4.3")), (4.123, 4.122, 4.124, ("4.12 s", "4.12-4.12")),
    (41.23, 20.0, 60.0, ("41 s", "20-60")), (4.1, 4.1, 4.1, ("4.10 s", "4.10-4.10")),
    (0.041, 0.039, 0.043, ("41 ms", "39-43")),
])  # fmt: skip
def test_no_duration_is_finer_than_its_interval(value: float, low: float, high: float, words: tuple[str, str]) -> None:
    """A wide interval leaves fewer digits."""
    shown, between = numbers.seconds_between(value, low, high)
    assert (plain(shown), plain(between)) == words


@pytest.mark.parametrize(("value", "low", "high", "words"), [
    (2110.89, 255.43, 8551.0, "about 35 min an epoch (4 min to 2 h 23 min; rough)"),
    (4.123, 3.931, 4.312, "4.1 s an epoch (3.9 to 4.3)"), (4.0, None, None, "about 4 s an epoch"),
    (4.1, 3.0, 6.0, "about 4.1 s an epoch (3 s to 6 s; rough)"), (0.0, 0.0, 0.0, "0 s an epoch (0 to 0)"),
    (3600.0, 1800.0, 7200.0, "about 1 h an epoch (30 min to 2 h; rough)"),
])  # fmt: skip
def test_a_prediction_is_said_as_finely_as_it_is_known(
    value: float, low: float | None, high: float | None, words: str
) -> None:
    assert numbers.predicted(value, low, high, " an epoch") == words


def test_figures_for_logs_have_plain_characters() -> None:
    """A terminal without UTF-8 shows them."""
    shown = (numbers.duration(0.000420), numbers.memory(1659 * MIB), numbers.plain(numbers.ratio(math.inf)))
    assert shown == ("420 us", "1.62 GiB", "infx")
