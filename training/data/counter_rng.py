"""Counter-based random numbers: each is the hash of (seed, epoch, sample, stream, column).

So they depend neither on the micro-batch nor on a resumed step, and a whole batch is one vectorised expression that
leaves torch's generators alone.

The hash is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014):
its output number i is a mix of `key + (i + 1) * GAMMA`, computable without the outputs before it. Keys nest:
an output serves as the key of the next level.
"""

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Right shift and factor of each round of the finalizer."""
_LAST_SHIFT = 31
_MASK = (1 << 64) - 1

_SHUFFLE_STREAM = -1
_TURNS_STREAM = -2
"""Streams of `uniform` are not negative, so that these share no numbers with them."""


def uniform(seed: int, epoch: int, samples: Tensor, counts: Mapping[int, int]) -> dict[int, Tensor]:
    """Return float32 numbers [B, count] in [0, 1) of each stream, for the samples numbered `samples` (int64 [B]).

    `counts` has one stream or more, each with one column or more. Row i of a stream depends on (seed, epoch,
    samples[i], stream) alone; a larger count adds columns and keeps the others, and other streams change nothing.
    `seed` is 0..2**63-1; `epoch` and streams are at least 0. Operations that must be independent of each other use
    different streams.
    """
    # All at once: with a batch's few numbers each operation takes longer to begin than to compute.
    keys = torch.tensor([_signed(_nested_key(seed, epoch, stream)) for stream in counts], device=samples.device)
    sample_keys = _mix_(_steps(samples)[:, None] + keys)
    pairs = tuple((count + 1) // 2 for count in counts.values())
    places, steps = _layout(pairs, samples.device)
    words = _mix_(sample_keys.index_select(1, places).add_(steps))
    # Each 64-bit word makes two columns; 24 bits of each half are what a float32 holds exactly.
    mantissas = words.view(torch.int32).bitwise_right_shift_(8).bitwise_and_(0xFFFFFF)
    numbers = mantissas.to(torch.float32).mul_(2.0**-24).split([2 * number for number in pairs], dim=1)
    return {stream: part[:, :count] for (stream, count), part in zip(counts.items(), numbers, strict=True)}


@lru_cache(maxsize=64)
def _layout(pairs: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return each word's place among the streams, of `pairs` words each, and the step it adds to a sample's key."""
    places = [place for place, number in enumerate(pairs) for _ in range(number)]
    steps = _steps(torch.tensor([step for number in pairs for step in range(number)], dtype=torch.int64))
    return torch.tensor(places, dtype=torch.int64, device=device), steps.to(device)


def shuffle(seed: int, epoch: int, count: int) -> Tensor:
    """Return a permutation of range(count), int64 [count], depending on (seed, epoch, count) alone."""
    hashes = _outputs(_nested_key(seed, epoch, _SHUFFLE_STREAM), torch.arange(count))
    return torch.argsort(hashes, stable=True)


def turn_hashes(seed: int, turns: Tensor, samples: Tensor) -> Tensor:
    """Return int64 hashes [N] of (seed, turn, sample), for turns and sample numbers int64 [N] that are not negative."""
    return _mix_(_steps(samples).add_(_outputs(_nested_key(seed, _TURNS_STREAM), turns)))


def _nested_key(*indices: int) -> int:
    """Return the key reached from key 0 by taking the given output at each level, 0..2**64-1."""
    key = 0
    for index in indices:
        key = _mix((key + (index + 1) * _GAMMA) & _MASK)
    return key


def _outputs(key: int, indices: Tensor) -> Tensor:
    """Return SplitMix64's outputs number `indices` (int64, from 0) for `key`, as the int64 of the same 64 bits."""
    return _mix_(_steps(indices).add_(_signed(key)))


def _steps(indices: Tensor) -> Tensor:
    return (indices + 1).mul_(_signed(_GAMMA))


def _mix(word: int) -> int:
    """Apply SplitMix64's finalizer to one word, 0..2**64-1; for a single word far faster than a tensor."""
    for shift, factor in _ROUNDS:
        word = (word ^ (word >> shift)) * factor & _MASK
    return word ^ (word >> _LAST_SHIFT)


def _mix_(words: Tensor) -> Tensor:
    """Apply SplitMix64's finalizer to int64 words, in place; torch's multiplication wraps as it needs to."""
    for shift, factor in _ROUNDS:
        words.bitwise_xor_(_logical_right_shift(words, shift)).mul_(_signed(factor))
    return words.bitwise_xor_(_logical_right_shift(words, _LAST_SHIFT))


def _logical_right_shift(words: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch's own repeats the sign bit."""
    return (words >> bits).bitwise_and_(_MASK >> bits)


def _signed(word: int) -> int:
    """Return the two's complement int64 of the same 64 bits, as torch takes no larger scalars."""
    return word - (word >> 63 << 64)
