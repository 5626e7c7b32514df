"""Which training samples train and which validate; the parent asks, so no torch is needed for it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.contract.spec import TrainSpec
from preflight.errors import InvalidConfig
from training.data.dataset_info import DatasetInfo
from training.data.split import DEFAULT_VALIDATION, Split, default_batch, split
from training.step.train_state import EpochDone, TrainState


def a_spec(batch_size: int, validation: int | None = None) -> TrainSpec:
    return TrainSpec(dataset="digits", model="cnn", batch_size=batch_size, validation_samples=validation)


def asked_for(
    *, epochs: int = 1, train_samples: int | None = None, epoch_samples: int | None = None, max_steps: int | None = None
) -> TrainSpec:
    return replace(
        a_spec(100), epochs=epochs, train_samples=train_samples, epoch_samples=epoch_samples, max_steps=max_steps
    )  # fmt: skip


def a_set(train_count: int) -> DatasetInfo:
    return DatasetInfo(
        name="digits", path=Path("nowhere"), shape=(1, 28, 28), classes=10, train_count=train_count, test_count=10,
        mean=33.0, std=78.0, sources=(),
    )  # fmt: skip


def parts_of(train: int, validation: int, steps: int) -> Split:
    """Return the parts of a training of one epoch, which is one pass over all that do not validate."""
    return Split(
        train=train, available=train, validation=validation, steps=steps, pass_steps=steps, total_steps=steps
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "asked", "batch_size", "expected"),
    [
        (60_000, None, 128, parts_of(55_000, 5_000, 429)),
        (50_000, None, 1000, parts_of(45_000, 5_000, 45)),
        (1_500, None, 100, parts_of(1_350, 150, 13)),
        (9, None, 9, parts_of(9, 0, 1)),
        (1_500, 0, 1_500, parts_of(1_500, 0, 1)),
        (1_500, 1_499, 1, parts_of(1, 1_499, 1)),
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
    assert parts == replace(parts_of(1_350, 150, steps), pass_steps=13)


def test_an_epoch_shorter_than_a_batch_is_refused() -> None:
    """No step would be left of it."""
    with pytest.raises(InvalidConfig, match="epoch_samples is 99, less than a batch of 100; use at least 100") as no:
        split(replace(a_spec(100), epoch_samples=99), a_set(1_500))
    assert no.value.field == "epoch_samples"


@pytest.mark.parametrize(
    ("asked", "train", "steps", "pass_steps", "total", "epochs", "last"),
    [
        ({"train_samples": 400, "epochs": 3}, 400, 4, 4, 12, 3, 1.0),
        ({"train_samples": 400, "epoch_samples": 1_000, "epochs": 3}, 400, 10, 4, 30, 3, 1.0),
        ({"train_samples": 1_350}, 1_350, 13, 13, 13, 1, 1.0),
        ({"max_steps": 5}, 1_350, 5, 13, 5, 1, 1.0),
        ({"max_steps": 5, "epochs": 3}, 1_350, 5, 13, 5, 1, 1.0),
        ({"max_steps": 13, "epochs": 3}, 1_350, 13, 13, 13, 1, 1.0),
        ({"max_steps": 20, "epochs": 3}, 1_350, 13, 13, 20, 2, 7 / 13),
        ({"max_steps": 39, "epochs": 3}, 1_350, 13, 13, 39, 3, 1.0),
        ({"max_steps": 10, "train_samples": 400, "epoch_samples": 700, "epochs": 3}, 400, 7, 4, 10, 2, 3 / 7),
    ],
)
def test_a_short_training(
    asked: dict[str, int], train: int, steps: int, pass_steps: int, total: int, epochs: int, last: float
) -> None:
    """`train_samples` shortens a pass, `epoch_samples` says the length of an epoch, `max_steps` ends it all."""
    spec = asked_for(**asked)
    parts = split(spec, a_set(1_500))
    assert (parts.train, parts.available, parts.validation) == (train, 1_350, 150)
    assert (parts.steps, parts.pass_steps, parts.total_steps, parts.epochs) == (steps, pass_steps, total, epochs)
    assert parts.last_epoch == pytest.approx(last)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"train_samples": 99}, "train_samples is 99, less than a batch of 100; use at least 100"),
        ({"train_samples": 1_351},
         "train_samples is 1351, but digits has 1350 samples to train on; use at most 1350"),
        ({"max_steps": 14}, "max_steps is 14, but epochs is 1, which makes 13 steps; use at most 13, or more epochs"),
        ({"max_steps": 40, "epochs": 3},
         "max_steps is 40, but epochs is 3, which makes 39 steps; use at most 39, or more epochs"),
        ({"max_steps": 9, "train_samples": 400, "epochs": 2},
         "max_steps is 9, but epochs is 2, which makes 8 steps; use at most 8, or more epochs"),
        ({"max_steps": 5, "train_samples": 400, "epoch_samples": 200, "epochs": 2},
         "max_steps is 5, but epochs is 2, which makes 4 steps; use at most 4, or more epochs"),
    ],
)  # fmt: skip
def test_lengths_that_contradict_one_another_are_refused(asked: dict[str, int], message: str) -> None:
    """In one sentence: what is asked for, what there is, what to do."""
    spec = asked_for(**asked)
    with pytest.raises(InvalidConfig) as no:
        split(spec, a_set(1_500))
    assert (no.value.message, no.value.field) == (message, next(iter(asked)))


@given(
    epochs=st.integers(1, 50), batch_size=st.integers(1, 200), train_samples=st.none() | st.integers(1, 1_400),
    epoch_samples=st.none() | st.integers(1, 5_000), max_steps=st.none() | st.integers(1, 5_000),
)  # fmt: skip
def test_the_epochs_of_any_training_make_its_steps(
    epochs: int, batch_size: int, train_samples: int | None, epoch_samples: int | None, max_steps: int | None
) -> None:
    """All but the last one are whole, a state that ends them one by one counts the same, and then it is finished."""
    spec = TrainSpec(
        dataset="digits", model="cnn", epochs=epochs, batch_size=batch_size, train_samples=train_samples,
        epoch_samples=epoch_samples, max_steps=max_steps,
    )  # fmt: skip
    try:
        parts = split(spec, a_set(1_500))
    except InvalidConfig:
        return
    assert parts.total_steps == (max_steps or epochs * parts.steps)
    state, done = TrainState(steps=parts.steps, max_steps=max_steps), 0
    while not state.is_finished(spec):
        assert 1 <= state.epoch_steps <= parts.steps
        state.step = state.epoch_steps
        done += state.step
        state.end_epoch(EpochDone(
            epoch=state.epoch + 1, loss=0.0, val_acc=None, val_loss=None, samples_per_s=1.0, seconds=1.0,
            train_seconds=1.0,
        ))  # fmt: skip
        assert state.position == done
    assert done == parts.total_steps == state.total_steps(spec)
    assert state.epoch == parts.epochs == state.total_epochs(spec)
    assert parts.last_epoch == pytest.approx((done - (parts.epochs - 1) * parts.steps) / parts.steps)


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


@pytest.mark.parametrize(
    ("train", "batch"), [(60_000, 128), (2_048, 128), (2_047, 64), (480, 16), (100, 16), (7, 7)]
)  # fmt: skip
def test_few_samples_have_a_smaller_default_batch(train: int, batch: int) -> None:
    """480 photographs make 30 steps an epoch, not three."""
    assert default_batch(replace(a_set(train + 50), validation_count=50), 128) == batch
