"""Worker processes: shares of a container, and what becomes of all when one ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from preflight.container.resources import Resources
from preflight.errors import InvalidConfig
from worker.queue.processes import MIN_SHARE_BYTES, share_processors, split_processors
from worker.state.signals import SAME_REQUEST_SECONDS


def split(processors: Collection[int], shares: int, root: Path) -> list[set[int]]:
    return [set(share) for share in split_processors(processors, shares, root)]


def container(cores: int, memory_bytes: int) -> Resources:
    """A container with 8 processors."""
    return Resources(
        cores=cores, quota=None, memory_bytes=memory_bytes, affinity=frozenset(range(8)), working_set_bytes=None,
        cores_source="", memory_source="", warnings=(),
    )  # fmt: skip


@pytest.mark.parametrize(("shares", "sets"), [
    (1, [{0, 1, 2, 3, 5}]), (2, [{0, 1}, {2, 3}]), (5, [{0}, {1}, {2}, {3}, {5}]),
])  # fmt: skip
def test_processors_are_dealt_out_in_equal_sets(tmp_path: Path, shares: int, sets: list[set[int]]) -> None:
    """What cannot be divided is left over, so that all have the same plans."""
    assert split({0, 1, 2, 3, 5}, shares, tmp_path) == sets


def test_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    """Linux numbers the second threads of all cores after the first ones; packages stay together, too."""
    for number, (package, core) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)] * 2):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "core_id").write_text(f"{core}\n")
    assert split(range(8), 4, tmp_path) == [{0, 4}, {2, 6}, {1, 5}, {3, 7}]
    assert split(range(8), 2, tmp_path) == [{0, 2, 4, 6}, {1, 3, 5, 7}]


@pytest.mark.parametrize(("shares", "cores", "memory", "message"), [
    (3, 2, 64 * MIN_SHARE_BYTES, "processes is 3, but this container has 2 cores; use at most 2"),
    (2, 1, 64 * MIN_SHARE_BYTES, "processes is 2, but this container has 1 core; use at most 1"),
    (4, 8, 3 * MIN_SHARE_BYTES, "processes is 4, but each needs 512 MiB, and this container has 1536 MiB of memory; "
     "use at most 3"),
    (2, 8, MIN_SHARE_BYTES // 2, "processes is 2, but each needs 512 MiB, and this container has 256 MiB of memory; "
     "use at most 1"),
])  # fmt: skip
def test_a_container_that_is_too_small_is_refused(shares: int, cores: int, memory: int, message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        share_processors(container(cores, memory), shares)
    assert caught.value.message == message


def test_one_process_needs_no_share() -> None:
    assert share_processors(container(1, MIN_SHARE_BYTES // 2), 1) == [frozenset(range(8))]


PROGRAM = """
import os, signal, sys
from pathlib import Path
from worker.queue.processes import run_processes

mark = Path(sys.argv[1])

def run():
    try:
        mark.mkdir()
    except FileExistsError:
        {second}
    {first}

run_processes([frozenset(os.sched_getaffinity(0))] * 2, run)
"""
WAIT = "signal.pause()"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("first", "second", "code"), [
    ("return", "return", 0),
    ("sys.exit(3)", WAIT, 3),  # it has said why; the other one is stopped
    ("return", "sys.exit(2)", 2),
    ("os.kill(os.getpid(), signal.SIGKILL)", "return", 0),  # it is replaced
    ("os.kill(os.getppid(), signal.SIGTERM); " + WAIT, "os._exit(0)", 1),  # a signal ended it before it could stop
])  # fmt: skip
def test_how_all_end_when_one_does(tmp_path: Path, first: str, second: str, code: int) -> None:
    program = PROGRAM.format(first=first, second=second)
    done = subprocess.run([sys.executable, "-P", "-c", program, str(tmp_path / "mark")], timeout=60)
    assert done.returncode == code


SIGNALLED = """
import os, signal, sys
from worker.queue.processes import run_processes
from worker.state.signals import FORWARDED

told = []

def on_signal(number, frame):
    told.append(number)
    print(*told, flush=True)
    if len(told) == 2:
        sys.exit(4)

def run():
    signal.signal(FORWARDED, on_signal)
    print("ready", flush=True)
    while True:
        signal.pause()

run_processes([frozenset(os.sched_getaffinity(0))], run)
"""


def test_signals_are_forwarded_once_each() -> None:
    """Ctrl-C, although it reaches the whole process group; a second request, but no second signal of the same one."""
    command = [sys.executable, "-P", "-c", SIGNALLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        os.killpg(parent.pid, signal.SIGINT)
        parent.terminate()  # a process manager forwards its own
        assert parent.stdout.readline() == "10\n"
        time.sleep(2 * SAME_REQUEST_SECONDS)
        parent.terminate()
        assert parent.stdout.readline() == "10 10\n"
        assert parent.wait(60) == 4
