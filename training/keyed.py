"""Random numbers that are a function of their key, not of the order in which they are drawn.

A generator with hidden state gives other numbers when the micro-batch changes or a run resumes. Here each
number is the hash of (seed, epoch, sample, stream, column), so neither matters, and a whole batch is one
vectorised expression that leaves torch's generators alone.

The hash is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014):
its output number i is a mix of `key + (i + 1) * GAMMA`, computable without the outputs before it. Keys nest:
an output serves as the key of the next level.
"""

import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Right shift and factor of each round of the finalizer."""
_LAST_SHIFT = 31
_MASK = (1 << 64) - 1

_SHUFFLE_STREAM = -1
"""Streams of `uniform` are not negative, so that a shuffle shares no numbers with them."""


def uniform(seed: int, epoch: int, samples: Tensor, stream: int, count: int) -> Tensor:
    """Float32 numbers [B, count] in [0, 1), for the data set's samples numbered `samples` (int64 [B]).

    Row i depends on (seed, epoch, samples[i], stream) alone; a larger `count` adds columns and keeps the
    others. `seed` is 0..2**63-1; `epoch` and `stream` are at least 0. Operations that must be independent of
    each other use different streams.
    """
    sample_keys = _outputs(_nested_key(seed, epoch, stream), samples)
    pairs = torch.arange((count + 1) // 2, device=samples.device)
    words = _mix_(sample_keys[:, None].repeat(1, len(pairs)).add_(_steps(pairs)))
    # Each 64-bit word makes two columns; 24 bits of each half are what a float32 holds exactly.
    mantissas = words.view(torch.int32).bitwise_right_shift_(8).bitwise_and_(0xFFFFFF)
    return mantissas.to(torch.float32).mul_(2.0**-24)[:, :count]


def shuffle(seed: int, epoch: int, count: int) -> Tensor:
    """Permutation of range(count), int64 [count], depending on (seed, epoch, count) alone."""
    hashes = _outputs(_nested_key(seed, epoch, _SHUFFLE_STREAM), torch.arange(count))
    return torch.argsort(hashes, stable=True)


def _nested_key(*indices: int) -> int:
    """Key reached from key 0 by taking the given output at each level, 0..2**64-1."""
    key = 0
    for index in indices:
        key = _mix((key + (index + 1) * _GAMMA) & _MASK)
    return key


def _outputs(key: int, indices: Tensor) -> Tensor:
    """SplitMix64's outputs number `indices` (int64, from 0) for `key`, as the int64 of the same 64 bits."""
    return _mix_(_steps(indices).add_(_signed(key)))


def _steps(indices: Tensor) -> Tensor:
    return (indices + 1).mul_(_signed(_GAMMA))


def _mix(word: int) -> int:
    """SplitMix64's finalizer on one word, 0..2**64-1; for a single word far faster than a tensor."""
    for shift, factor in _ROUNDS:
        word = (word ^ (word >> shift)) * factor & _MASK
    return word ^ (word >> _LAST_SHIFT)


def _mix_(words: Tensor) -> Tensor:
    """SplitMix64's finalizer on int64 words, in place; torch's multiplication wraps as it needs to."""
    for shift, factor in _ROUNDS:
        words.bitwise_xor_(_logical_right_shift(words, shift)).mul_(_signed(factor))
    return words.bitwise_xor_(_logical_right_shift(words, _LAST_SHIFT))


def _logical_right_shift(words: Tensor, bits: int) -> Tensor:
    """Shift that fills with zeros; torch's own repeats the sign bit."""
    return (words >> bits).bitwise_and_(_MASK >> bits)


def _signed(word: int) -> int:
    """Two's complement int64 of the same 64 bits, as torch takes no larger scalars."""
    return word - (word >> 63 << 64)
