"""Memory allocator: mallopt(3) and malloc_trim(3) of glibc."""

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Parameters of mallopt(3), from glibc's malloc.h."""


def tune_allocator() -> bool:
    """Keep large tensors in the heap instead of mapping and page-faulting them at each step.

    Cannot be taken back in this process. Returns False where the C library has no mallopt (musl, macOS).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    largest = 2**31 - 1
    # Before glibc 2.35 more than 32 MiB is refused.
    heap = mallopt(M_MMAP_THRESHOLD, largest) or mallopt(M_MMAP_THRESHOLD, 32 << 20)
    return bool(heap and mallopt(M_TOP_PAD, 256 << 20) and mallopt(M_TRIM_THRESHOLD, largest))


def trim_allocator() -> None:
    """Give freed memory back to the kernel, which a tuned allocator never does by itself; nothing where it cannot."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
