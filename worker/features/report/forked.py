"""Fork that does a part of this process's work at the same time, such as half of a report."""

import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final, Generic, TypeVar

from preflight.container.resources import detect
from training.process.child_main import die_with_parent

FORKS: Final = multiprocessing.get_context("fork")
MIN_BYTES: Final = 1 << 30
"""Memory of a container below which one process does everything: a fork takes additional memory."""

Part = TypeVar("Part")


class Fork(Generic[Part]):
    """The work of a function, done in a fork where a core and memory are free, else here."""

    def __init__(self, work: Callable[[], Part]) -> None:
        """Begin; `work` may be done twice."""
        self._work = work
        self._answer: Connection | None = None
        resources = detect()
        if resources.cores > 1 and resources.memory_bytes >= MIN_BYTES:
            with suppress(OSError):  # no process or no descriptor is left
                self._answer = self._start()

    def result(self) -> Part:
        """Return what the function returns; its error is raised here."""
        if self._answer is None:
            return self._work()
        with self._answer, suppress(EOFError):  # it failed or was killed
            part: Part = self._answer.recv()
            return part
        return self._work()

    def _start(self) -> Connection:
        answer, sender = FORKS.Pipe(duplex=False)
        with sender:
            FORKS.Process(target=self._send, args=(sender, os.getpid()), daemon=True).start()
        return answer

    def _send(self, sender: Connection, parent: int) -> None:
        die_with_parent(parent)
        with suppress(Exception):  # the parent does the work again, and raises the error there
            sender.send(self._work())
