"""What writing a large checkpoint file takes of the processor: past the page cache, by it, and its sha256.

Prints a Markdown table: medians and ranges over rounds in which the ways take turns. The processor time is that of the
thread; what the kernel does on behalf of nobody (writing pages back) is not in it.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.tables import spread
from training.system.atomic_files import staged
from worker.config.settings import load

SIZE: Final = 128 << 20
"""Bytes: what a checkpoint of `resnet18` has."""
ROUNDS: Final = 7


def main() -> None:
    """Measure and print."""
    data = memoryview(os.urandom(1 << 20) * (SIZE >> 20))
    place = load().artifact_dir
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as directory:
        path = Path(directory) / "file"

        def write(*, uncached: bool) -> None:
            path.unlink(missing_ok=True)
            with staged(path, [data], uncached=uncached) as commit:
                commit()

        ways: dict[str, Callable[[], object]] = {
            "a new file past the page cache": lambda: write(uncached=True),
            "a new file in the page cache": lambda: write(uncached=False),
            "sha256": lambda: hashlib.sha256(data).digest(),
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                began, processor_began = time.perf_counter(), time.thread_time()
                way()
                taken[name].append((time.perf_counter() - began, time.thread_time() - processor_began))
    print(f"| {SIZE >> 20} MiB | seconds | seconds of the processor |")
    print("|---|---|---|")
    for name, pairs in taken.items():
        walls, used = (spread(seconds, ".3f") for seconds in zip(*pairs, strict=True))
        print(f"| {name} | {walls} | {used} |")


if __name__ == "__main__":
    main()
