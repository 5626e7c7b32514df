"""Keyed random numbers: functions of their key alone, and random enough for augmentation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from training.data import counter_rng
from training.data.counter_rng import shuffle

LARGEST_SEED = 2**63 - 1
SAMPLES = torch.arange(1000)


def chi_square(values: Tensor, bins: int) -> float:
    """Chi-square statistic of values in [0, 1) against equally filled bins."""
    observed = torch.histc(values.double(), bins, 0, 1)
    expected = values.numel() / bins
    return float(((observed - expected) ** 2 / expected).sum())


def uniform(seed: int, epoch: int, samples: Tensor, stream: int, count: int) -> Tensor:
    return counter_rng.uniform(seed, epoch, samples, {stream: count})[stream]


def correlation(first: Tensor, second: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((first.flatten(), second.flatten())))[0, 1])


def test_outputs_are_those_of_splitmix64() -> None:
    """For key 1234567 the first words are those that the reference implementation in C prints."""
    words = counter_rng._outputs(1234567, torch.arange(5)).tolist()
    assert [word % 2**64 for word in words] == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]  # fmt: skip


@given(st.integers(0, 2**64 - 1))
@settings(max_examples=200, deadline=None)
def test_scalar_and_tensor_finalizers_agree(word: int) -> None:
    """A nested key reached through Python integers is the word that the tensor path makes."""
    (mixed,) = counter_rng._mix_(torch.tensor([counter_rng._signed(word)])).tolist()
    assert mixed == counter_rng._signed(counter_rng._mix(word))


@given(
    seed=st.integers(0, LARGEST_SEED), epoch=st.integers(0, 10_000),
    samples=st.lists(st.integers(0, 2**62), max_size=20), stream=st.integers(0, 100), count=st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_uniform_has_its_shape_and_range(seed: int, epoch: int, samples: list[int], stream: int, count: int) -> None:
    """Any key gives float32 numbers in [0, 1), [B, count] of them."""
    numbers = uniform(seed, epoch, torch.tensor(samples, dtype=torch.int64), stream, count)
    assert numbers.dtype == torch.float32
    assert numbers.shape == (len(samples), count)
    assert bool(((numbers >= 0) & (numbers < 1)).all())


@given(counts=st.dictionaries(st.integers(0, 100), st.integers(1, 9), min_size=2, max_size=5))
@settings(max_examples=50, deadline=None)
def test_streams_do_not_depend_on_each_other(counts: dict[int, int]) -> None:
    """Whichever are drawn together, in whatever order, each is what it is alone."""
    together = counter_rng.uniform(7, 3, SAMPLES, counts)
    assert list(together) == list(counts)
    assert all(torch.equal(together[stream], uniform(7, 3, SAMPLES, stream, counts[stream])) for stream in counts)


def test_uniform_reaches_both_ends_but_not_one() -> None:
    """Four million numbers come within 1e-5 of 0 and of 1, and none is rounded up to 1."""
    numbers = uniform(0, 0, torch.arange(2_000_000), 0, 2)
    assert float(numbers.min()) < 1e-5
    assert 1 - 1e-5 < float(numbers.max()) < 1


def test_uniform_does_not_depend_on_the_batch() -> None:
    """A sample's numbers are the same alone, in another order, among other samples, and with more columns."""
    whole = uniform(7, 3, SAMPLES, 2, 5)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(uniform(7, 3, order, 2, 5), whole[order])
    assert torch.equal(uniform(7, 3, SAMPLES[41:42], 2, 5), whole[41:42])
    assert torch.equal(torch.cat([uniform(7, 3, part, 2, 5) for part in SAMPLES.chunk(31)]), whole)
    assert torch.equal(uniform(7, 3, SAMPLES, 2, 3), uniform(7, 3, SAMPLES, 2, 8)[:, :3])


def test_uniform_is_pinned() -> None:
    """The numbers of a key are the same in every version: changing them would change every seed's result."""
    numbers = uniform(LARGEST_SEED, 2, torch.tensor([0, 59_999]), 1, 2)
    mantissas = (numbers.double() * 2**24).long().tolist()
    assert mantissas == [[5105145, 16463965], [7551221, 11032977]]


@pytest.mark.parametrize(
    "other",
    [(8, 3, 2), (LARGEST_SEED, 3, 2), (7, 4, 2), (7, 3, 4), (3, 7, 2), (7, 2, 3)],
    ids=["seed", "largest seed", "epoch", "stream", "seed and epoch swapped", "epoch and stream swapped"],
)
def test_each_part_of_the_key_matters(other: tuple[int, int, int]) -> None:
    """Another seed, epoch or stream gives numbers that are unrelated, not the same ones shifted."""
    seed, epoch, stream = other
    first, second = uniform(7, 3, SAMPLES, 2, 8), uniform(seed, epoch, SAMPLES, stream, 8)
    assert abs(correlation(first, second)) < 4 / math.sqrt(first.numel())
    assert not set(first.flatten().tolist()[:100]) & set(second.flatten().tolist()[:100])


@pytest.mark.parametrize("lag", [1, 2, 3, 64])
def test_neighbours_are_uncorrelated(lag: int) -> None:
    """Neither neighbouring samples nor neighbouring columns are correlated."""
    numbers = uniform(0, 0, torch.arange(2000), 0, 100)
    bound = 4 / math.sqrt(numbers.numel())
    assert abs(correlation(numbers[lag:], numbers[:-lag])) < bound
    assert abs(correlation(numbers[:, lag:], numbers[:, :-lag])) < bound


@pytest.mark.parametrize("seed", [0, 1, 2**32, LARGEST_SEED])
def test_numbers_are_uniform(seed: int) -> None:
    """Mean, variance and the counts of 100 bins are those of the uniform distribution."""
    numbers = uniform(seed, 1, torch.arange(1000), 0, 200)
    size = numbers.numel()
    assert abs(float(numbers.double().mean()) - 1 / 2) < 4 * math.sqrt(1 / 12 / size)
    assert abs(float(numbers.double().var()) - 1 / 12) < 4 * math.sqrt(1 / 180 / size)
    assert 50 < chi_square(numbers, bins=100) < 160  # 99 degrees of freedom: outside once in 10,000


def test_each_column_is_uniform_over_samples() -> None:
    """The single number that decides something for each sample is uniform over consecutive samples."""
    numbers = uniform(0, 0, torch.arange(60_000), 0, 4)
    for column in numbers.unbind(1):
        assert 50 < chi_square(column, bins=100) < 160


@given(seed=st.integers(0, LARGEST_SEED), epoch=st.integers(0, 10_000), count=st.integers(0, 300))
@settings(max_examples=50, deadline=None)
def test_shuffle_is_a_permutation(seed: int, epoch: int, count: int) -> None:
    """Each number of range(count) comes exactly once, and the same key gives the same order."""
    order = shuffle(seed, epoch, count)
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == list(range(count))
    assert torch.equal(order, shuffle(seed, epoch, count))


def test_shuffle_mixes_and_differs_by_epoch_and_seed() -> None:
    """60,000 samples come in an order unrelated to their numbers and to the next epoch's and seed's order."""
    order, next_epoch, next_seed = shuffle(0, 0, 60_000), shuffle(0, 1, 60_000), shuffle(1, 0, 60_000)
    for other in (torch.arange(60_000), next_epoch, next_seed):
        assert abs(correlation(order.double(), other.double())) < 4 / math.sqrt(60_000)
        assert int((order == other).sum()) < 10


@pytest.mark.usefixtures("torch_as_it_was")
def test_shuffle_does_not_depend_on_threads() -> None:
    """One thread and two give the same order."""
    orders = []
    for count in (1, 2):
        torch.set_num_threads(count)
        orders.append(shuffle(5, 6, 60_000))
    assert torch.equal(*orders)


def test_global_generator_is_left_alone() -> None:
    """Neither function reads or advances torch's global generator."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = uniform(0, 0, SAMPLES, 0, 3), shuffle(0, 0, 100)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = uniform(0, 0, SAMPLES, 0, 3), shuffle(0, 0, 100)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
