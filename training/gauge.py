"""A fixed piece of work: timed when a plan is calibrated, and again where training is not as it was predicted.

What a virtual machine's neighbours take of shared cores, caches, memory or power shows in no counter of its kernel; it
shows in that the same work takes longer. The work is half arithmetic and half memory, and none of it is the plan's.
"""

import statistics
import time
from typing import Final

import torch

SIDE: Final = 512
"""Of the matrices that are multiplied."""
NUMBERS: Final = 4 << 20
"""That are swept over: 16 MiB, more than the processor's own cache of a core or two."""
TURNS: Final = 5


@torch.inference_mode()
def gauge(threads: int) -> float:
    """Return the seconds that the work takes on `threads` threads: the median of `TURNS`, a few ms each."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    matrix, numbers = torch.full((SIDE, SIDE), 0.5), torch.zeros(NUMBERS)
    seconds = []
    for _ in range(1 + TURNS):  # the first one fetches pages and does not count
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        numbers.add_(1.0)
        seconds.append(time.perf_counter() - began)
    torch.set_num_threads(before)
    return statistics.median(seconds[1:])
