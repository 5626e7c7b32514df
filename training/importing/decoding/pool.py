"""The decoding children: as many as processors, each with one task at a time, replaced where a sample ends one."""

from __future__ import annotations

import json
import os
import selectors
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pydantic import JsonValue

from preflight.errors import ChildFailed
from training.importing.decoding.task import Task

MODULE: Final = "training.importing.decoding.child"
SECONDS: Final = 30.0
"""Longest time of a child at one sample, in seconds."""
START_SECONDS: Final = 60.0
"""Longest time in seconds for a child to start, on a busy machine from a cold disk."""
PAGE: Final = struct.Struct("<q")
TICK: Final = 0.1
GRACE: Final = 1.0
"""Seconds for a child to end by itself."""
MAX_DEATHS: Final = 50
"""Most children that may die in one import; beyond, the import ends."""
ENVIRONMENT: Final = {
    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system",
}  # fmt: skip


class Decoder:
    """One child process."""

    def __init__(self, work: Path, environment: Mapping[str, str], seconds: float) -> None:
        self._seconds = seconds
        self._page = tempfile.NamedTemporaryFile(prefix=".progress-", dir=work)  # noqa: SIM115 - closed by `end`
        self._page.write(PAGE.pack(-1))
        self._page.flush()
        self._errors = tempfile.TemporaryFile(dir=work)  # noqa: SIM115
        command = [sys.executable, "-P", "-m", MODULE, str(os.getpid()), str(work), self._page.name]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=work,
            env={**environment, **ENVIRONMENT},
        )  # fmt: skip
        self.task: Task | None = None
        self._text = b""
        self._seen, self._since = -1, time.monotonic()

    def fileno(self) -> int:
        """Return the descriptor on which answers come."""
        if self._process.stdout is None:
            raise AssertionError("it has a pipe")
        return self._process.stdout.fileno()

    def give(self, task: Task) -> None:
        """Give the child a task."""
        os.pwrite(self._page.fileno(), PAGE.pack(-1), 0)
        self.task, self._seen, self._since = task, -1, time.monotonic()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # the end of its output says that it is dead
                self._process.stdin.write(task.line())
                self._process.stdin.flush()

    def read(self) -> dict[str, JsonValue] | None:
        """Return the answer once it is whole; raises `EOFError` where the child has ended."""
        text = os.read(self.fileno(), 1 << 20)
        if not text:
            raise EOFError
        self._text += text
        if not self._text.endswith(b"\n"):
            return None
        answer: dict[str, JsonValue] = json.loads(self._text)
        self._text, self.task = b"", None
        return answer

    def at(self) -> int:
        """Return the sample that the child is at; -1: it has not begun the task."""
        number: int = PAGE.unpack(os.pread(self._page.fileno(), PAGE.size, 0))[0]
        return number

    def is_late(self) -> bool:
        """Whether the child has been at one sample for too long."""
        at, now = self.at(), time.monotonic()
        if at != self._seen:
            self._seen, self._since = at, now
        return self.task is not None and now - self._since > (START_SECONDS if at < 0 else self._seconds)

    def end(self, seconds: float = 0.0) -> str:
        """End the child, at once or where it does not end by itself; return how it ended, and its last error."""
        status = self._process.poll()
        if status is None and seconds:
            if self._process.stdin is not None:
                with suppress(BrokenPipeError):
                    self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                status = self._process.wait(seconds)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 500))
        last = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        self._page.close()
        self._errors.close()
        how = "took too long" if status is None else f"signal {-status}" if status < 0 else f"exit code {status}"
        return f"{how}{': ' if last else ''}{last}"


class Pool:
    """Children that decode one task after the other. As a context it starts them, and ends them in the end."""

    def __init__(self, work: Path, count: int, environment: Mapping[str, str], seconds: float = SECONDS) -> None:
        self._make: Callable[[], Decoder] = lambda: Decoder(work, environment, seconds)
        self._count = count
        self._seconds = seconds
        self._children: list[Decoder] = []
        self._deaths = 0

    def __enter__(self) -> Self:
        self._children = [self._make() for _ in range(self._count)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            for child in self._children:
                stack.callback(child.end, GRACE if child.task is None else 0.0)

    def run(self, tasks: Iterable[Task], check: Callable[[], None] = lambda: None) -> Iterator[dict[str, JsonValue]]:
        """Yield the answer to each task as it is done, in any order; `check` is called several times a second.

        Raises:
            ChildFailed: children end again and again.
        """
        waiting = deque(tasks)
        for child in self._children:
            if waiting:
                child.give(waiting.popleft())
        with selectors.DefaultSelector() as selector:
            for child in self._children:
                selector.register(child, selectors.EVENT_READ)
            while any(child.task is not None for child in self._children):
                ready = [key.fileobj for key, _ in selector.select(TICK)]
                check()
                for child in list(self._children):
                    answer = None
                    try:
                        if child in ready:
                            answer = child.read()
                        elif child.is_late():
                            raise EOFError
                    except EOFError:
                        selector.unregister(child)
                        child = self._replace(child)
                        selector.register(child, selectors.EVENT_READ)
                    if answer is not None:
                        yield answer
                        if waiting:
                            child.give(waiting.popleft())

    def _replace(self, child: Decoder) -> Decoder:
        """Start another child for one that ended, and give it the same task without the sample it was at."""
        task, at = child.task, child.at()
        late = child.is_late()
        how = child.end(0.0 if late else GRACE)
        self._children.remove(child)
        self._deaths += 1
        if task is None or self._deaths > MAX_DEATHS or at < 0:
            raise ChildFailed(f"the decoding process ended ({how}); give it more memory, or see what the error says")
        why = f"took longer than {self._seconds:g} s to decode" if late else f"ended the decoding process ({how})"
        task.skip[at] = why
        new = self._make()
        self._children.append(new)
        new.give(task)
        return new
