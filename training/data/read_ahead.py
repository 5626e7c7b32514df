"""Samples of a large mapped store, requested from the disk before they are used.

A training takes samples in random order, and the kernel expects that a mapped file is read in order: it reads 128 KiB
around each page that it lacks, one after the other. With data that do not fit into memory, that takes most of the time.
"""

import ctypes
import mmap
from collections import deque
from collections.abc import Iterator
from typing import Final

from torch import Tensor

LEAST_BYTES: Final = 256 << 20
"""Least bytes of images: fewer are soon in memory as a whole, and advice would cost a system call for each sample."""
AHEAD: Final = 4
"""Batches that are requested ahead of the one in use."""
MADVISE: Final = ctypes.CDLL(None).madvise
"""The function of libc; to look it up for each sample takes longer than the call."""


class ReadAhead:
    """Advice for the kernel about the images of a mapped store; none where they are few."""

    def __init__(self, images: Tensor) -> None:
        """Expect that `images`, uint8 [N, C, H, W], are used in random order."""
        self._first, self._bytes = images.data_ptr(), images[:1].nbytes
        self._active = images.nbytes >= LEAST_BYTES
        if self._active:
            _advise(self._first, images.nbytes, mmap.MADV_RANDOM)

    def ask(self, samples: Tensor) -> None:
        """Have the kernel begin to read the images of samples, int64 [B], and do not wait for them."""
        if self._active:
            for sample in samples.tolist():
                _advise(self._first + sample * self._bytes, self._bytes, mmap.MADV_WILLNEED)

    def ahead_of(self, batches: Iterator[tuple[int, Tensor]], count: int) -> Iterator[tuple[int, Tensor]]:
        """Yield (pass, draws) of each batch, after the next ones were asked for; draws number `count` samples."""
        waiting = deque[tuple[int, Tensor]]()
        for number, draws in batches:
            self.ask(draws % count)
            waiting.append((number, draws))
            if len(waiting) > AHEAD:
                yield waiting.popleft()
        yield from waiting


def _advise(address: int, length: int, advice: int) -> None:
    """Advise the kernel about the pages that hold these bytes; a refusal costs speed alone."""
    begin = address // mmap.PAGESIZE * mmap.PAGESIZE
    MADVISE(ctypes.c_void_p(begin), ctypes.c_size_t(address + length - begin), advice)
