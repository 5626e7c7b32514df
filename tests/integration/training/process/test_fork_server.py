"""Fork server: its children begin like fresh interpreters, nothing of one is left for the next, its loss costs time."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from pydantic import JsonValue
from support.files.cgroups import new_cgroup
from support.worker.process_tree import gone, gone_now
from support.worker.python_path import importing, write_child
from support.worker.services import wait_until

from preflight.errors import ChildFailed, ChildKilled
from training.process import start as starts
from training.process.child import Child
from training.process.fork_server.client import ForkServer
from training.process.runner import iter_records, read_to_end

PARENT = """
import os, sys
from pathlib import Path
from training.process.child import Child
from training.process.fork_server.client import ForkServer
from training.process.runner import iter_records
server = ForkServer(os.environ, ("training.process.child_main",))
server.start()
if os.fork():
    os.wait()
    sys.stdin.read()
else:
    with Child("sleeping", b"{}", Path(sys.argv[1]), dict(os.environ), server=server) as child:
        for record in iter_records(child, lambda: None):
            print(server.pid, child.pid, os.getpid(), flush=True)
"""
SLEEP = """
journal.write("start", {})
while not should_stop():
    time.sleep(0.01)
"""
PPID = 'journal.write("done", {"parent": os.getppid()})'


class Bench:
    """A directory for modules and requests, and a fork server whose environment leads there."""

    def __init__(self, directory: Path, preload: tuple[str, ...] = ("training.process.child_main",)) -> None:
        self.directory = directory
        self.environment: Mapping[str, str] = importing(directory)
        self.server = ForkServer(self.environment, preload)

    def child(self, name: str, environment: Mapping[str, str] | None = None, *, listens: bool = False) -> Child:
        """Start a child of a module."""
        return Child(
            name, b"{}", self.directory, environment or self.environment, server=self.server, listens=listens
        )  # fmt: skip

    def run(
        self, name: str, statements: str = PPID, environment: Mapping[str, str] | None = None
    ) -> dict[str, JsonValue]:
        """Run a child to its end and return what it is done with."""
        write_child(self.directory, name, statements)
        with self.child(name, environment) as child:
            return read_to_end(child, lambda: None)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Yield a bench whose server has been started."""
    bench = Bench(tmp_path)
    bench.server.start()
    yield bench
    bench.server.stop()


def test_children_are_forks_of_the_server(bench: Bench) -> None:
    assert [bench.run(f"child{number}")["parent"] for number in range(3)] == 3 * [bench.server.pid]


def test_without_a_server_an_interpreter_is_started(tmp_path: Path) -> None:
    """Before its start and after its end."""
    bench = Bench(tmp_path)
    assert bench.run("before")["parent"] == os.getpid()
    bench.server.start()
    assert bench.run("during")["parent"] == bench.server.pid
    bench.server.stop()
    assert bench.run("after")["parent"] == os.getpid()


LOOK = """
import gc
import numpy, torch
import training.step.train_step
journal.write("done", {
    "environment": dict(os.environ), "directory": os.getcwd(), "arguments": len(sys.argv),
    "descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task")),
    "torch_threads": torch.get_num_threads(), "torch_seed": torch.initial_seed(), "torch_state": hash(torch.get_rng_state().numpy().tobytes()),
    "deterministic": torch.are_deterministic_algorithms_enabled(), "dtype": str(torch.get_default_dtype()),
    "tensors": sum(isinstance(one, torch.Tensor) for one in gc.get_objects()),
    "affinity": sorted(os.sched_getaffinity(0)), "nice": os.nice(0), "cgroup": Path("/proc/self/cgroup").read_text(),
    "signals": [getattr(signal.getsignal(number), "__qualname__", str(signal.getsignal(number))) for number in (1, 2, 10, 15)],
    "session": os.getsid(0) == os.getpid(), "numpy": float(numpy.random.random()), "python": __import__("random").random(),
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "limit": Path("/proc/self/oom_score_adj").read_text(),
})
"""  # noqa: E501
SOIL = """
import numpy, torch, random, tempfile
os.environ["LEFT"] = "behind"
os.chdir("/")
torch.manual_seed(1); numpy.random.seed(1); random.seed(1)
torch.set_num_threads(2); torch.set_num_interop_threads(2); torch.use_deterministic_algorithms(True)
torch.set_default_dtype(torch.float64)
builtins = __import__("builtins"); builtins.weights = torch.randn(1000, 1000) @ torch.randn(1000, 1000)
builtins.files = [open(os.devnull) for _ in range(9)]
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.nice(5)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
journal.write("done", {})
"""


@pytest.mark.usefixtures("signals_heard")  # a fresh interpreter would ignore what the tests ignore
def test_nothing_of_one_child_is_left_for_the_next(tmp_path: Path) -> None:
    """Weights, environment, descriptors, threads, generators, priority, cgroup: as in a fresh interpreter."""
    bench = Bench(tmp_path, ("torch", "training.step.train_step"))
    fresh = bench.run("look", LOOK)
    bench.server.start()
    first = bench.run("look", LOOK)
    bench.run("soil", SOIL)
    second = bench.run("look", LOOK)
    bench.server.stop()
    drawn = ("numpy", "python", "torch_seed", "torch_state")  # different each time
    for found in (first, second):
        for name in fresh.keys() - {*drawn, "cgroup", "descriptors", "threads", "arguments"}:
            assert found[name] == fresh[name], name
    assert all(len({str(found[name]) for found in (fresh, first, second)}) == 3 for name in drawn)
    for name in ("descriptors", "threads"):
        assert first[name] == second[name], name
    assert isinstance(first["threads"], int)
    assert isinstance(fresh["threads"], int)
    assert first["threads"] <= fresh["threads"]  # NumPy's pool is started again by those who use it


def test_openmp_runs_in_children_one_after_the_other(tmp_path: Path) -> None:
    """A fork after a parallel region would hang in the next one; the server has run none."""
    bench = Bench(tmp_path, ("torch",))
    bench.server.start()
    statements = """
import torch
torch.set_num_threads(2)
network = torch.nn.Conv2d(8, 8, 3)
network(torch.randn(64, 8, 28, 28)).sum().backward()
journal.write("done", {"parent": os.getppid(), "finite": bool(network.weight.grad.isfinite().all())})
"""
    for number in range(3):
        assert bench.run(f"child{number}", statements) == {"parent": bench.server.pid, "finite": True}
    bench.server.stop()


def test_a_child_dies_with_its_parent_and_with_the_server(tmp_path: Path) -> None:
    """SIGKILL of the process that asked for it, a fork of the server's starter; then of the starter."""
    bench = Bench(tmp_path)
    write_child(bench.directory, "sleeping", SLEEP)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], env=bench.environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as starter:  # fmt: skip
        assert starter.stdout is not None
        server, child, asker = map(int, starter.stdout.readline().split())
        os.kill(asker, signal.SIGKILL)
        assert gone(child)
        assert not gone_now(server)
        starter.kill()
        assert gone(server)


def test_the_end_of_the_server_is_the_kill_of_its_child(bench: Bench) -> None:
    write_child(bench.directory, "sleeping", SLEEP)
    assert bench.server.pid is not None
    with bench.child("sleeping") as child:
        while child.pid is None:  # of a server that dies before it has told that, a fresh interpreter takes the place
            child.wait(1)
        os.kill(bench.server.pid, signal.SIGKILL)
        with pytest.raises(ChildKilled, match="SIGKILL"):
            read_to_end(child, lambda: None)
    assert gone(bench.server.pid)
    bench.server.start()
    assert bench.run("next")["parent"] == bench.server.pid


def test_a_server_that_dies_over_an_order_is_replaced(tmp_path: Path) -> None:
    """It ends while it imports; the child is a fresh interpreter."""
    bench = Bench(tmp_path, ("ending",))
    (tmp_path / "ending.py").write_text("import os, time; time.sleep(0.5); os._exit(1)")
    bench.server.start()
    assert bench.run("child")["parent"] == os.getpid()


def test_a_server_that_hangs_is_passed_by(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, so that it forks no second child for the order, and no other order waits for it."""
    assert bench.run("before")["parent"] == bench.server.pid
    assert bench.server.pid is not None
    os.kill(bench.server.pid, signal.SIGSTOP)
    (bench.directory / "runs").mkdir()
    statements = '(Path(__file__).parent / "runs" / str(os.getpid())).touch()\n' + PPID
    with monkeypatch.context() as short:
        # For the stopped server alone: beside other tests a healthy one may need longer.
        short.setattr(starts, "ANSWER_LIMIT", 0.5)
        assert bench.run("during", statements)["parent"] == os.getpid()
    assert len(list((bench.directory / "runs").iterdir())) == 1
    assert gone(bench.server.pid)
    assert bench.run("after")["parent"] == os.getpid()
    bench.server.start()
    assert bench.run("next")["parent"] == bench.server.pid


def test_a_lent_server_that_hangs_carries_out_no_order_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its starter may end it, as others have children of it: a second training would write the same files."""
    assert bench.run("before")["parent"] == bench.server.pid
    starter, lent = bench.server, bench.server.lend()
    assert lent is not None
    assert starter.pid is not None
    write_child(bench.directory, "sleeping", SLEEP)
    os.kill(starter.pid, signal.SIGSTOP)
    pid = os.fork()
    if pid == 0:
        bench.server = lent
        monkeypatch.setattr(starts, "ANSWER_LIMIT", 0.5)
        with bench.child("sleeping") as child:
            next(iter_records(child, lambda: None))
            (bench.directory / "begun").touch()
            signal.pause()
    try:
        while not (bench.directory / "begun").exists():
            time.sleep(0.01)
        os.kill(starter.pid, signal.SIGCONT)
        assert bench.run("after")["parent"] == starter.pid  # which takes orders one after the other
        server = psutil.Process(starter.pid)
        wait_until(lambda: server.children() == [])
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_hanging_server_takes_no_endless_queue_of_orders(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.run("before")["parent"] == bench.server.pid
    assert bench.server.pid is not None
    os.kill(bench.server.pid, signal.SIGSTOP)
    connections = []
    while (connection := bench.server.order("none", bench.directory, bench.environment, (0, 1, 2))) is not None:
        connections.append(connection)
        assert len(connections) < 10_000
    monkeypatch.setattr(starts, "ANSWER_LIMIT", 0.0)
    assert bench.run("during")["parent"] == os.getpid()
    for connection in connections:
        connection.close()


def test_a_server_that_hangs_while_its_child_ends_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's records are all read; its status is not awaited for ever."""
    monkeypatch.setattr(starts, "STATUS_LIMIT", 0.5)
    write_child(
        bench.directory, "ending", 'journal.write("start", {})\nsys.stdin.read()\njournal.write("done", {"it": "is"})'
    )
    with bench.child("ending", listens=True) as child:
        records = iter_records(child, lambda: None)
        next(records)
        assert bench.server.pid is not None
        os.kill(bench.server.pid, signal.SIGSTOP)
        child.ask_to_stop()
        assert next(records).payload == {"it": "is"}
    assert child.exit_status().returncode == -signal.SIGKILL
    assert gone(bench.server.pid)


def test_a_package_that_was_upgraded_ends_the_server(tmp_path: Path) -> None:
    """What is imported must not be mixed with what lies on the disk now."""
    package = tmp_path / "upgraded"
    package.mkdir()
    (package / "__init__.py").write_text("VERSION = 1")
    bench = Bench(tmp_path, ("upgraded",))
    statements = 'import upgraded\njournal.write("done", {"parent": os.getppid(), "version": upgraded.VERSION})'
    bench.server.start()
    assert bench.run("child", statements) == {"parent": bench.server.pid, "version": 1}
    (package / "other").write_text("VERSION = 22")
    (package / "other").rename(package / "__init__.py")
    assert bench.run("child", statements) == {"parent": os.getpid(), "version": 22}
    bench.server.start()
    assert bench.run("child", statements) == {"parent": bench.server.pid, "version": 22}
    bench.server.stop()


def test_an_upgrade_waits_for_the_children_that_run(tmp_path: Path) -> None:
    """The end of the server would be theirs: a later child is a fresh interpreter meanwhile."""
    package = tmp_path / "upgraded"
    package.mkdir()
    (package / "__init__.py").write_text("")
    bench = Bench(tmp_path, ("upgraded",))
    bench.server.start()
    write_child(bench.directory, "sleeping", SLEEP)
    with bench.child("sleeping") as first:
        next(iter_records(first, lambda: None))
        (package / "other").write_text("VERSION = 22")
        (package / "other").rename(package / "__init__.py")
        assert bench.run("second")["parent"] == os.getpid()
        assert first.running()
        assert bench.server.running()
    bench.server.stop()


def test_a_fork_of_the_starter_starts_its_own_children(bench: Bench) -> None:
    """By the same server, which ends neither with it nor by it; once it was refused it needs another one."""
    starter, lent = bench.server, bench.server.lend()
    assert lent is not None
    write_child(bench.directory, "sleeping", SLEEP)
    with bench.child("sleeping") as first:
        next(iter_records(first, lambda: None))
        bench.server = lent
        write_child(bench.directory, "in_fork", PPID)
        pid = os.fork()
        if pid == 0:
            is_right = lent.running() and bench.run("in_fork")["parent"] == starter.pid
            bench.run("in_fork", environment={**bench.environment, "READ_WHEN": "loaded"})
            lent.stop()
            os._exit(0 if is_right else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert not lent.running()
        assert starter.running()
        assert first.running()


def test_a_refused_fork_is_tried_by_the_parent(bench: Bench) -> None:
    """At a limit on processes that binds the server alone."""
    assert bench.run("before")["parent"] == bench.server.pid
    assert bench.server.pid is not None
    with new_cgroup("pids") as group:
        (group / "cgroup.procs").write_text(str(bench.server.pid))
        (group / "pids.max").write_text("1")
        assert bench.run("during")["parent"] == os.getpid()
        (group / "pids.max").write_text("max")
        assert bench.run("after")["parent"] == bench.server.pid
        bench.server.stop()


def test_another_environment_is_that_of_the_server_from_the_next_child_on(bench: Bench) -> None:
    """What libraries read when they are loaded must be right; the first child with it is a fresh interpreter."""
    other = {**bench.environment, "READ_WHEN": "loaded"}
    statements = 'journal.write("done", {"parent": os.getppid(), "read": os.environ.get("READ_WHEN")})'
    assert bench.run("child", statements) == {"parent": bench.server.pid, "read": None}
    assert bench.run("child", statements, other) == {"parent": os.getpid(), "read": "loaded"}
    assert bench.run("child", statements, other) == {"parent": bench.server.pid, "read": "loaded"}
    assert bench.run("child", statements) == {"parent": os.getpid(), "read": None}
    assert bench.run("child", statements) == {"parent": bench.server.pid, "read": None}


def test_an_environment_is_taken_before_the_next_order(bench: Bench) -> None:
    """Also where the server did not run between the end of the child that it refused and that order."""
    other = {**bench.environment, "READ_WHEN": "loaded"}
    server = bench.server
    assert bench.run("before")["parent"] == server.pid
    assert server.pid is not None
    with bench.child("before", other) as child:
        read_to_end(child, lambda: None)
        os.kill(server.pid, signal.SIGSTOP)
    with bench.child("before", other) as child:
        os.kill(server.pid, signal.SIGCONT)
        assert read_to_end(child, lambda: None) == {"parent": server.pid}


def test_a_missing_variable_needs_an_interpreter(bench: Bench) -> None:
    fewer = {name: value for name, value in bench.environment.items() if name != "HOME"}
    assert bench.run("child", environment=fewer)["parent"] == os.getpid()


def test_an_order_is_withdrawn_by_leaving(tmp_path: Path) -> None:
    """The server, which is still importing, forks no child for it."""
    bench = Bench(tmp_path, ("slow",))
    (tmp_path / "slow.py").write_text("import time; time.sleep(1)")
    bench.server.start()
    write_child(bench.directory, "touching", '(Path(__file__).parent / "touched").touch()')
    with bench.child("touching") as child:
        assert child.pid is None
    assert bench.run("next")["parent"] == bench.server.pid
    assert not (tmp_path / "touched").exists()


def test_a_crash_before_the_task_is_described(bench: Bench) -> None:
    (bench.directory / "broken.py").write_text("raise LookupError('nothing here')")
    with bench.child("broken") as child, pytest.raises(ChildFailed, match="exited with code 1: LookupError: nothing"):
        read_to_end(child, lambda: None)
    assert bench.run("next")["parent"] == bench.server.pid


def test_children_of_two_parents_run_at_once(bench: Bench) -> None:
    write_child(bench.directory, "sleeping", SLEEP)
    with bench.child("sleeping") as first:
        next(iter_records(first, lambda: None))
        assert bench.run("second")["parent"] == bench.server.pid
        assert first.running()


def test_its_memory_is_told(bench: Bench) -> None:
    assert bench.run("before")["parent"] == bench.server.pid
    assert bench.server.shared_bytes() > 1 << 20
    bench.server.stop()
    assert bench.server.shared_bytes() == 0
