"""Commands in pseudo terminals."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOME = "\x1b[H"
BACK = "\x1b[?1049l"
"""Sequence that leaves the alternate screen."""


class Terminal:
    """A command in its controlling pseudo terminal."""

    def __init__(self, environment: dict[str, str], command: Sequence[str], *, columns: int, rows: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            command, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self._raw = b""

    @property
    def output(self) -> str:
        return self._raw.decode(errors="replace")

    def until(self, words: str) -> str:
        """Wait until the terminal shows `words`, and return its screen."""
        deadline = time.monotonic() + 30
        while words not in self.screen:
            assert time.monotonic() < deadline, self.screen
            assert self._read(), self.screen
        return self.screen

    def end(self) -> int:
        """Read to the end of the command, and return its exit code."""
        while self._read():
            pass
        os.close(self._master)
        return self.process.wait(30)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def screen(self) -> str:
        """The last drawing without colors; after the alternate screen, what remains."""
        output = self.output
        return CONTROL.sub("", output.rpartition(BACK if BACK in output else HOME)[2])

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 0.1)
        if not ready:
            return self.process.poll() is None
        try:
            self._raw += os.read(self._master, 1 << 16)
        except OSError:  # the other end is closed
            return False
        return True


StartTerminal = Callable[..., Terminal]


@pytest.fixture
def start_terminal() -> Iterator[StartTerminal]:
    """Start commands in terminals; kill them after the test."""
    started: list[Terminal] = []

    def start(environment: dict[str, str], *command: str, columns: int = 80, rows: int = 24) -> Terminal:
        started.append(Terminal(environment, command, columns=columns, rows=rows))
        return started[-1]

    yield start
    for terminal in started:
        terminal.process.kill()
        terminal.process.wait()
