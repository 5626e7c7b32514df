"""Scores: when one is no better than chance."""

import pytest
import torch

from training.loop.evaluate import Score, chance_warning


@pytest.mark.parametrize(
    ("counts", "accuracy", "warned"),
    [
        ([1000] * 10, 0.1, True),
        ([1000] * 10, 0.108, True),  # ten classes guessed, 2.7 standard deviations of luck
        ([1000] * 10, 0.11, False),
        ([9000, 1000], 0.9, True),
        ([9000, 1000], 0.92, False),
        ([5, 5], 0.9, True),  # nine of ten by coins: rare, and not rare enough
        ([100], 1.0, True),  # one class alone
    ],
)
def test_an_accuracy_is_compared_with_the_largest_class(counts: list[int], accuracy: float, warned: bool) -> None:
    """What answering with one class reaches by itself, and luck, is no learning."""
    labels = torch.arange(len(counts), dtype=torch.uint8).repeat_interleave(torch.tensor(counts))
    warning = chance_warning(Score(accuracy=accuracy, loss=1.0, samples=len(labels)), labels)
    assert (warning is not None) == warned
    if warning is not None:
        largest = max(counts) / sum(counts)
        assert f"recognizes {accuracy:.1%} of the test samples, no better than chance" in warning
        assert f"alone is {largest:.1%} of them" in warning
