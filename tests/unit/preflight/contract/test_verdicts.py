"""Words for speeds: a figure that is not known is not printed."""

import pytest

from preflight.contract.verdicts import speedup


@pytest.mark.parametrize(("low", "high", "doubt", "words"), [
    (9.0, 9.3, "", "9.16x (9.00x to 9.30x)"),
    (2.0, 6.0, "the machine was busy", "probably faster (2x to 6x; the machine was busy)"),
    (0.25, 0.5, "the machine was busy", "probably slower (0.25x to 0.5x; the machine was busy)"),
    (0.774, 1.538, "the time was short", "faster or slower (0.77x to 1.5x; the time was short)"),
    (0.982, 1.04, "the machine was busy", "faster or slower (0.98x to 1.04x; the machine was busy)"),
    (31.0, 111.0, "the machine was busy", "probably faster (31x to 110x; the machine was busy)"),
    (9.6, 14_400.0, "the machine was busy", "probably faster (9.6x to 14,000x; the machine was busy)"),
    (None, None, "", "about 9.16x"),
])  # fmt: skip
def test_a_doubtful_speed_is_an_interval(low: float | None, high: float | None, doubt: str, words: str) -> None:
    """Never the bare ratio of a busy machine, and never an interval where there is none."""
    assert speedup(9.16, low, high, doubt) == words


def test_another_plan_is_named_before_the_interval() -> None:
    assert speedup(1.77, 1.72, 1.81, other="your own plan") == "1.77x as fast as your own plan (1.72x to 1.81x)"
    assert (
        speedup(1.77, 1.2, 2.9, "doubt", "your own plan") == "probably faster than your own plan (1.2x to 2.9x; doubt)"
    )
