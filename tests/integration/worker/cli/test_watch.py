"""`preflight watch` as a person sees it, in a real pseudo terminal, beside a real Redis that is killed meanwhile."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

import pytest
from faults.machines import RedisServer
from pydantic import JsonValue
from redis import Redis
from services import digits_job

from worker.broker import keys
from worker.client import Client, Silence
from worker.config.settings import Settings, service_environment
from worker.events.state import publish
from worker.wire import EVENT, AnyEvent

COMMAND = [sys.executable, "-P", "-m", "worker.cli"]
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOME = "\x1b[H"
BACK = "\x1b[?1049l"
"""Leaves the alternate screen."""


def event(kind: str, seq: int, attempt: int = 1, **fields: JsonValue) -> AnyEvent:
    header = {"type": kind, "job_id": "job", "attempt": attempt, "seq": seq, "ts": 1e9 + seq}
    return EVENT.validate_python({**header, **fields})


def started(seq: int, attempt: int = 1) -> AnyEvent:
    return event("job_started", seq, attempt, worker="host.7", dataset="digits", model="cnn", epochs=2, batch_size=32)


def progress(seq: int, step: int) -> AnyEvent:
    return event("progress", seq, epoch=1, epochs=2, step=step, steps=100, loss=1 / step, accuracy=step / 100,
                 samples_per_s=1000, eta_s=9)  # fmt: skip


def done(seq: int) -> AnyEvent:
    return event("training_done", seq, test_accuracy=0.98, test_loss=0.1, epochs=2, best_epoch=2, stopped_early=False,
                 train_seconds=2, samples_per_s=1000, measured_epoch_s=1, artifact="/models/job",
                 model_sha256="0" * 64)  # fmt: skip


class Terminal:
    """A pseudo terminal with a command in it, of which it is the controlling one."""

    def __init__(self, environment: dict[str, str], *arguments: str, columns: int, rows: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            env={**environment, "TERM": "xterm-256color"}, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self._raw = b""

    @property
    def output(self) -> str:
        """Everything that was written so far."""
        return self._raw.decode(errors="replace")

    def until(self, words: str) -> str:
        """Wait until the terminal shows `words`, and return what it shows."""
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
        """What was drawn last, without colours; behind the alternate screen, what stays."""
        output = self.output
        return CONTROL.sub("", output.rpartition(BACK if BACK in output else HOME)[2])

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 0.1)
        if not ready:
            return self.process.poll() is None
        try:
            self._raw += os.read(self._master, 1 << 16)
        except OSError:  # how Linux says that the other end is closed
            return False
        return True


StartTerminal = Callable[..., Terminal]


@pytest.fixture
def start_terminal() -> Iterator[StartTerminal]:
    """Start commands in terminals; what still runs after the test is killed."""
    started: list[Terminal] = []

    def start(environment: dict[str, str], *arguments: str, columns: int = 80, rows: int = 24) -> Terminal:
        started.append(Terminal(environment, *arguments, columns=columns, rows=rows))
        return started[-1]

    yield start
    for terminal in started:
        terminal.process.kill()
        terminal.process.wait()


@pytest.fixture
def environment(settings: Settings) -> dict[str, str]:
    return dict(service_environment(settings))


def tell(server: RedisServer, *events: AnyEvent) -> None:
    connection = Redis.from_url(server.url)
    for one in events:
        publish(connection, one, ttl=600)


def test_a_redis_that_is_killed_loses_a_watcher_nothing(
    server: RedisServer, environment: dict[str, str], start_terminal: StartTerminal, request: pytest.FixtureRequest
) -> None:
    """Live and line by line: both say that they wait, go on with the next event, and end with the job's exit code.

    The first event is no longer in the capped stream, so that the live view has it from the lifecycle.
    """
    tell(server, started(1), progress(2, 10))
    Redis.from_url(server.url).xtrim(keys.events("job"), maxlen=1, approximate=False)
    environment["PREFLIGHT_REDIS_URL"] = server.url
    screen = start_terminal(environment, "watch", "job")
    lines = subprocess.Popen(
        [*COMMAND, "watch", "job"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert "cnn on digits, 2 epochs" in screen.until("step 10/100")
    request.addfinalizer(lines.kill)
    assert lines.stdout is not None
    assert lines.stderr is not None
    before = lines.stdout.readline()
    server.kill()
    screen.until("waiting for Redis, which cannot be reached")
    assert lines.stderr.readline() == "waiting for Redis, which cannot be reached\n"
    server.start()
    tell(server, progress(3, 20))
    assert "waiting for Redis" not in screen.until("step 20/100")
    tell(server, event("warning", 4, message="\x1b[2J[red]\u202e"), done(5))
    assert screen.end() == 0
    assert "test accuracy 98.00%" in screen.screen
    assert "\\x1b[2J[red]\\u202e" in screen.screen
    after, _ = lines.communicate(timeout=30)
    assert lines.returncode == 0
    assert [line.split()[0] for line in [before, *after.splitlines()]] == ["train", "train", "warning", "done"]
    assert "\x1b" not in after


def test_ctrl_c_leaves_the_job_alone(
    client: Client, environment: dict[str, str], start_terminal: StartTerminal
) -> None:
    """In a small terminal: it says so, the exit code is 130, the cursor is back, and the job still waits."""
    client.enqueue(digits_job(job_id="first"))
    client.enqueue(digits_job(job_id="second"))
    screen = start_terminal({**environment, "NO_COLOR": "1"}, "watch", "second", columns=40, rows=20)
    screen.until("waits in the queue, 1 before it")
    screen.type("\x03")
    assert screen.end() == 130
    assert "second goes on" in screen.screen
    assert screen.output.rindex("\x1b[?25h") > screen.output.rindex("\x1b[?25l")
    assert "\x1b[3" not in screen.output
    assert client.status("second").status == "queued"


def test_the_exit_code_is_the_jobs(client: Client, environment: dict[str, str], start_terminal: StartTerminal) -> None:
    """3 for one that was cancelled, with and without a terminal that can be drawn on."""
    client.enqueue(digits_job(job_id="unwanted"))
    client.cancel("unwanted")
    screen = start_terminal(environment, "watch", "unwanted", columns=200, rows=50)
    assert screen.end() == 3
    assert "cancelled in the queue" in screen.screen
    plain = start_terminal(environment, "watch", "unwanted", "--plain")
    assert plain.end() == 3
    assert plain.output == "cancelled cancelled in the queue\r\n"


def test_a_follower_hears_nothing_twice(server: RedisServer) -> None:
    """Not from a Redis that came back empty and was told everything again, and all that is new."""
    told = [started(1), progress(2, 10), progress(3, 20)]
    tell(server, *told)
    client = Client(server.url)
    following = client.follow("job")
    assert [next(following) for _ in told] == told
    server.kill()
    server.empty()
    said = next(following)
    while not (isinstance(said, Silence) and said.trouble):
        said = next(following)
    server.start()
    tell(server, *told, progress(4, 30), started(1, attempt=2), done(5))
    heard = [said for said in following if not isinstance(said, Silence)]
    assert [(said.attempt, said.seq) for said in heard] == [(1, 4), (2, 1), (1, 5)]
