"""Which training samples train and which validate; the parent asks, so no torch is needed for it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.config.spec import TrainSpec
from training.data.dataset_info import DatasetInfo
from training.data.split import DEFAULT_VALIDATION, Split, split
from training.errors import InvalidConfig


def a_spec(batch_size: int, validation: int | None = None) -> TrainSpec:
    return TrainSpec(dataset="digits", model="cnn", batch_size=batch_size, validation_samples=validation)


def a_set(train_count: int) -> DatasetInfo:
    return DatasetInfo(
        name="digits", path=Path("nowhere"), shape=(1, 28, 28), classes=10, train_count=train_count, test_count=10,
        mean=33.0, std=78.0, sources=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "asked", "batch_size", "expected"),
    [
        (60_000, None, 128, Split(train=55_000, validation=5_000, steps=429, pass_steps=429)),
        (50_000, None, 1000, Split(train=45_000, validation=5_000, steps=45, pass_steps=45)),
        (1_500, None, 100, Split(train=1_350, validation=150, steps=13, pass_steps=13)),
        (9, None, 9, Split(train=9, validation=0, steps=1, pass_steps=1)),
        (1_500, 0, 1_500, Split(train=1_500, validation=0, steps=1, pass_steps=1)),
        (1_500, 1_499, 1, Split(train=1, validation=1_499, steps=1, pass_steps=1)),
    ],
)
def test_the_split(count: int, asked: int | None, batch_size: int, expected: Split) -> None:
    """By default 5,000 samples validate, or a tenth where that is fewer; else as many as asked for, 0 included."""
    assert split(a_spec(batch_size, asked), a_set(count)) == expected


@pytest.mark.parametrize("asked", [1_500, 1_501, 10_000_000])
def test_validating_on_everything_is_refused(asked: int) -> None:
    """Nothing left to train on: the message names the field, its value, the data set and the bound."""
    with pytest.raises(
        InvalidConfig, match=f"validation_samples is {asked}, but digits has 1500 .* at most 1499"
    ) as no:
        split(a_spec(1, asked), a_set(1_500))
    assert no.value.field == "validation_samples"


@pytest.mark.parametrize("batch_size", [1_351, 65_536])
def test_a_batch_larger_than_the_data_is_refused(batch_size: int) -> None:
    """The bound is what is left to train on, not the size of the data set."""
    with pytest.raises(InvalidConfig, match=f"batch_size is {batch_size}, but digits has 1350 .* at most 1350") as no:
        split(a_spec(batch_size), a_set(1_500))
    assert no.value.field == "batch_size"


@pytest.mark.parametrize(("samples", "steps"), [(100, 1), (250, 2), (1_350, 13), (13_000, 130)])
def test_an_epoch_is_as_long_as_asked(samples: int, steps: int) -> None:
    """Less than a pass over the samples, or several passes."""
    parts = split(replace(a_spec(100), epoch_samples=samples), a_set(1_500))
    assert parts == Split(train=1_350, validation=150, steps=steps, pass_steps=13)


def test_an_epoch_shorter_than_a_batch_is_refused() -> None:
    """No step would be left of it."""
    with pytest.raises(InvalidConfig, match="epoch_samples is 99, less than a batch of 100; use at least 100") as no:
        split(replace(a_spec(100), epoch_samples=99), a_set(1_500))
    assert no.value.field == "epoch_samples"


@given(count=st.integers(1, 200_000), asked=st.none() | st.integers(0, 200_000), batch_size=st.integers(1, 65_536))
def test_any_split_is_whole(count: int, asked: int | None, batch_size: int) -> None:
    """Each sample trains or validates, a step is a whole batch, and what cannot be is refused."""
    try:
        parts = split(a_spec(batch_size, asked), a_set(count))
    except InvalidConfig:
        assert (asked or 0) >= count or batch_size > count - (min(DEFAULT_VALIDATION, count // 10) if asked is None
                                                              else asked)  # fmt: skip
        return
    assert parts.train + parts.validation == count
    assert parts.validation == (min(DEFAULT_VALIDATION, count // 10) if asked is None else asked)
    assert 1 <= parts.steps == parts.pass_steps == parts.train // batch_size


def test_the_split_needs_no_torch() -> None:
    """The process that chooses a plan asks for it, and imports no torch."""
    program = "import sys, training.data.split; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
