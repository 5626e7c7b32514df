"""The ways to have a process with torch: each yields, once what waits is ready, a function that gives an order.

`python -m bench.standby.ways WAY` tries one of them once and prints what it found as a line of JSON: each try is in an
interpreter of its own, so that one way leaves nothing for the next.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Final

from process_tree import rollup, tree

from bench.standby.child import answer

Order = Callable[[Path], object]
"""Starts or wakes the process that answers into a FIFO."""
Way = Callable[[], AbstractContextManager[Order]]
CHILD: Final = (sys.executable, "-m", "bench.standby.child")


@contextmanager
def fresh_interpreter() -> Iterator[Order]:
    """Nothing waits."""
    yield lambda fifo: subprocess.Popen([*CHILD, str(fifo)])


@contextmanager
def fork_server(*preload: str) -> Iterator[Order]:
    """Python's own fork server, with modules imported in it."""
    context = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload([*preload])
    first = context.Process(target=os.getpid)  # the server takes it when all is imported
    first.start()
    first.join()
    yield lambda fifo: context.Process(target=answer, args=(fifo,)).start()


@contextmanager
def spare_process() -> Iterator[Order]:
    """A fresh interpreter that has imported torch before the order comes; a second order would need another."""
    with subprocess.Popen(CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as spare:
        if spare.stdin is None or spare.stdout is None or spare.stdout.readline() != "waiting\n":
            raise SystemExit("the spare process ended before it waited")
        yield partial(print, file=spare.stdin, flush=True)


WAYS: Final[Mapping[str, Way]] = {
    "fresh interpreter": fresh_interpreter,
    "fork server of Python, torch preloaded": partial(fork_server, "torch"),
    "spare process, torch imported": spare_process,
}
"""Name of the row -> way. Whatever the worker uses gets its row here."""
UNSAFE: Final[Mapping[str, Way]] = {
    "a server that has run a parallel region": partial(fork_server, "bench.standby.parallel_region"),
}
"""Ways that are expected to hang; they prove that the check would find it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one try found: seconds, bytes, threads."""

    first_line: float
    """From the order to the first line."""
    step: float
    """From the first line to the end of the step."""
    private_dirty: int
    """Of the process that took the step, after it."""
    waiting: int
    """Private_Dirty of all that waited, before the order."""
    threads: int
    """Of the process that took the step, after it."""


def attempt(way: str) -> Found:
    """Try one way."""
    with tempfile.TemporaryDirectory() as directory, {**WAYS, **UNSAFE}[way]() as order:
        fifo = Path(directory) / "answer"
        os.mkfifo(fifo)
        waiting = sum(rollup(pid, "Private_Dirty") for pid in tree(os.getpid())[1:])
        began = time.perf_counter()
        order(fifo)
        with fifo.open() as lines:
            lines.readline()
            first = time.perf_counter()
            told = json.loads(lines.readline())
            return Found(first_line=first - began, step=time.perf_counter() - first, waiting=waiting, **told)


if __name__ == "__main__":
    print(json.dumps(asdict(attempt(sys.argv[1]))))
