"""Stop signals reach a child when it can handle them: those that come between its start and its handlers wait."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.worker.python_path import importing, write_child

from training.process.child import Child
from training.process.fork_server.client import ForkServer
from training.process.interrupts import STOP_SIGNALS
from training.process.runner import iter_records, read_to_end

pytestmark = pytest.mark.usefixtures("signals_heard")


@pytest.fixture(params=["fork server", "fresh interpreter"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ForkServer | None]:
    """What starts children, or None."""
    if request.param == "fresh interpreter":
        yield None
        return
    server = ForkServer(importing(tmp_path), ("training.process.child_main",))
    server.start()
    yield server
    server.stop()


def started(directory: Path, statements: str, server: ForkServer | None) -> Child:
    """Start a child with this task, and return it once it has a process."""
    write_child(directory, "slow", statements, first="time.sleep(0.5)")  # as its imports take
    child = Child("slow", b"{}", directory, importing(directory), server=server)
    while child.pid is None:
        child.wait(0.01)
        assert child.running()
    return child


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_before_the_handlers_is_not_lost(
    number: signal.Signals, tmp_path: Path, server: ForkServer | None
) -> None:
    """A child that can save hears it; the default action would have ended it at once, without a word."""
    with started(tmp_path, 'journal.write("done", {"stopped": should_stop()})', server) as child:
        assert child.pid is not None
        os.kill(child.pid, number)
        assert read_to_end(child, lambda: None) == {"stopped": True}
        assert child.exit_status().returncode == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_child_that_has_nothing_to_save_ignores_signals(
    number: signal.Signals, tmp_path: Path, server: ForkServer | None
) -> None:
    """Its parent decides when it ends; the fork server goes on, too."""
    task = 'journal.write("at work", {})\ntime.sleep(0.5)\njournal.write("done", {"work": "whole"})'
    with started(tmp_path, task, server) as child:
        for record in iter_records(child, lambda: None):
            if record.kind == "at work":
                assert child.pid is not None
                os.kill(child.pid, number)
                if server is not None and server.pid is not None:
                    os.kill(server.pid, number)
        assert record.payload == {"work": "whole"}
        assert child.exit_status().returncode == 0
    assert server is None or server.running()


def test_what_a_child_starts_hears_signals(tmp_path: Path, server: ForkServer | None) -> None:
    """Neither blocked signals nor ignored ones are inherited by programs that a library starts."""
    task = """
status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
journal.write("done", {name: value for name, value in (line.split(":", 1) for line in status.splitlines())})
"""
    with started(tmp_path, task, server) as child:
        status = read_to_end(child, lambda: None)
    stops = sum(1 << number - 1 for number in STOP_SIGNALS)
    assert [int(str(status[mask]), 16) & stops for mask in ("SigBlk", "SigIgn")] == [0, 0]


def test_the_starter_hears_signals_again(tmp_path: Path) -> None:
    """Those that came while it started a child are handled once that is there."""
    heard: list[int] = []
    former = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with started(tmp_path, 'journal.write("done", {})', None) as child:
            os.kill(os.getpid(), signal.SIGTERM)
            deadline = time.monotonic() + 5
            while not heard and time.monotonic() < deadline:
                time.sleep(0.01)
            read_to_end(child, lambda: None)
    finally:
        signal.signal(signal.SIGTERM, former)
    assert heard == [signal.SIGTERM]
    assert not set(STOP_SIGNALS) & signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_the_fork_server_ends_with_its_starter_alone(tmp_path: Path) -> None:
    """Also where signals reach it before Python has started in it."""
    server = ForkServer(importing(tmp_path), ("training.process.child_main",))
    server.start()
    assert server.pid is not None
    for number in STOP_SIGNALS:
        os.kill(server.pid, number)
    with started(tmp_path, 'journal.write("done", {"parent": os.getppid()})', server) as child:
        assert read_to_end(child, lambda: None) == {"parent": server.pid}
    assert server.running()
    server.stop()
    assert not server.running()
