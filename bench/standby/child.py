"""The process that is measured: with torch imported it says so, then takes one step with two threads.

`python -m bench.standby.child FIFO` answers at once; without an argument, when the path of a FIFO comes on stdin.
"""

import json
import sys
from pathlib import Path
from typing import Final

THREADS: Final = 2


def answer(fifo: Path) -> None:
    """Write a line when torch is there, and one when a forward and backward pass is done."""
    import torch

    with fifo.open("w", buffering=1) as lines:
        print("torch is imported", file=lines)
        torch.set_num_threads(THREADS)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3), torch.nn.ReLU(),
            torch.nn.Flatten(), torch.nn.Linear(64 * 24 * 24, 10),
        )  # fmt: skip
        model(torch.rand(64, 1, 28, 28)).logsumexp(1).mean().backward()
        # An OpenMP thread is one of the process's for good once a parallel region has started it.
        threads = sum(1 for _ in Path("/proc/self/task").iterdir())
        found = {"threads": threads, "private_dirty": private_dirty()}
        print(json.dumps(found), file=lines)


def private_dirty() -> int:
    """Return bytes that only this process has, and has written; read here without more imports."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_Dirty:"))


def main() -> None:
    """Answer into the FIFO on the command line, or be a spare process that imports torch and waits for one."""
    if len(sys.argv) > 1:
        answer(Path(sys.argv[1]))
    else:
        import torch  # noqa: F401 - before the order comes

        print("waiting", flush=True)
        answer(Path(sys.stdin.readline().strip()))


if __name__ == "__main__":
    main()
