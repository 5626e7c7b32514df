"""Whole steps, from measured ones of a part of their samples."""

import pytest

from calibration.measure.protocol import Measured

MEASURED = Measured(
    seconds=(0.3, 0.5), fetch_s=0.1, once_s=0.2, warm=(0.9,), start_s=1.0, peak_bytes=1, batch_statistics=False,
    disturbed="",
)  # fmt: skip


def test_what_a_step_does_once_is_not_multiplied() -> None:
    """Of 0.3 s of a quarter of the samples, 0.1 are spent on the weights: a whole step takes 4 x 0.2 + 0.1."""
    whole = MEASURED.whole(0.25)
    assert whole.seconds == pytest.approx((0.9, 1.7))
    assert whole.warm == pytest.approx((3.3,))
    assert whole.fetch_s == pytest.approx(0.4)
    assert (whole.start_s, whole.peak_bytes) == (MEASURED.start_s, MEASURED.peak_bytes)
    assert MEASURED.whole(1) == MEASURED
