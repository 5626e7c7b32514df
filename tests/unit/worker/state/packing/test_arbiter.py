"""Arbiter and ledger: which job may begin, and what each has, on real files with real locks."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from preflight.container.resources import MemoryUse, Resources
from preflight.wire import TrainJob
from training.loop.limit_watch import LimitWatch, SharedThreads
from training.prediction import Speeds
from worker.state.packing.arbiter import Arbiter, Candidate, Policy
from worker.state.packing.load import LoadMeter
from worker.state.packing.share import Usage

CNN: Speeds = ((1, 10.0), (2, 14.0))
GIB = 1 << 30
KIND = Candidate(kind="cnn mnist 128")


class Container:
    """Resources that a test changes."""

    def __init__(self, cores: int = 2, memory_bytes: int = 8 * GIB) -> None:
        self.found = Resources(
            cores=cores, quota=None, memory_bytes=memory_bytes, affinity=frozenset(range(cores)),
            working_set_bytes=GIB // 8, cores_source="", memory_source="", warnings=(),
        )  # fmt: skip

    def look(self) -> Resources:
        return self.found


@pytest.fixture
def worker(tmp_path: Path) -> Callable[..., Arbiter]:
    def make(name: str, container: Container, policy: Policy = "throughput", most_jobs: int | None = None) -> Arbiter:
        return Arbiter(tmp_path, name, policy=policy, most_jobs=most_jobs, look=container.look)

    return make


def train(arbiter: Arbiter, job_id: str, *, fixed: bool = False, memory: int = GIB // 4, threads: int = 2) -> int:
    """Take a job and begin its training; returns its threads."""
    permission = arbiter.decide(KIND)
    assert permission is not None
    arbiter.begin(job_id, job_id, KIND, permission)
    return arbiter.share.begin(Usage(threads=threads, speeds=CNN, is_fixed=fixed, memory_bytes=memory))


def test_a_lone_job_has_all_and_two_share(worker: Callable[..., Arbiter]) -> None:
    container = Container()
    one, two = worker("one", container), worker("two", container)
    assert train(one, "a") == 2
    assert one.share.file is not None
    assert one.share.file.read_text() == "0"
    assert train(two, "b") == 1
    shared = one.share.look()
    assert shared is not None
    assert (shared.processors, shared.total, shared.others) == (1, 2, ("b",))
    begun = two.share.look()
    assert begun is not None
    assert begun.describe() == "1 of 2 processors: with a 1.43 times as fast as one after the other"
    assert two.share.older == ("a",)
    two.end()
    assert one.share.file.read_text() == "0"
    assert worker("three", container).decide(KIND) is not None
    one.end()


def test_no_job_begins_while_another_one_calibrates(worker: Callable[..., Arbiter]) -> None:
    one, two = worker("one", Container()), worker("two", Container())
    permission = one.decide(KIND)
    assert permission is not None
    one.begin("a", "a", KIND, permission)
    assert two.decide(KIND) is None
    one.end()


def test_jobs_of_a_kind_that_ran_before_start_at_the_same_time(worker: Callable[..., Arbiter]) -> None:
    """Their plan is in the cache: none of them calibrates. A job of a new kind waits for them."""
    container = Container(cores=8)
    one, two, three = worker("one", container), worker("two", container), worker("three", container)
    train(one, "a")
    one.end()
    for arbiter, job_id in ((one, "b"), (two, "c")):
        permission = arbiter.decide(KIND)
        assert permission is not None
        arbiter.begin(job_id, job_id, KIND, permission)
    assert [(entry.phase, entry.speeds) for entry in one.ledger.entries()] == [("starting", CNN)] * 2
    assert three.decide(replace(KIND, kind="new")) is None
    assert three.decide(KIND) is not None
    one.end()
    two.end()


def test_a_job_whose_process_died_gives_its_processors_back(worker: Callable[..., Arbiter]) -> None:
    container = Container()
    one, two = worker("one", container), worker("two", container)
    assert train(one, "a") == 2
    pid = os.fork()
    if pid == 0:
        train(two, "b")
        signal.pause()
    while len(one.ledger.entries()) < 2 or one.share.look() is None:
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    found = None
    while found is None:
        found = one.share.look()
    assert (found.processors, found.others) == (2, ())
    assert found.describe() == "all 2 processors: no other job runs here now"
    assert one.share.file is not None
    assert one.share.file.read_text() == "0"


@pytest.mark.parametrize(("memory", "predicted", "begins"), [
    (8 * GIB, GIB, True), (2 * GIB, GIB // 2, True), (2 * GIB, GIB, False), (GIB, GIB // 2, False),
])  # fmt: skip
def test_memory_comes_first(
    worker: Callable[..., Arbiter], memory: int, predicted: int, begins: bool
) -> None:  # fmt: skip
    """The predicted peaks of all stay below 85 % of the budget; the second job is of a kind that ran before."""
    container = Container(memory_bytes=memory)
    one, two = worker("one", container), worker("two", container, most_jobs=2)
    train(one, "a", memory=predicted)
    assert (two.decide(KIND) is not None) == begins


def test_a_job_that_lies_about_its_memory_is_remembered(worker: Callable[..., Arbiter]) -> None:
    """What its processes really take counts from then on, also for the next job of its kind."""
    one = worker("one", Container())
    train(one, "a", memory=1)
    one.share.look()
    before = one.ledger.entries()[0]
    assert before.memory_bytes <= 96 * (1 << 20) + 1 or before.memory_bytes > 0
    ballast = bytearray(os.urandom(1 << 20) * 200)
    one.share._next_look = one.share._next_measure = 0.0
    one.share.look()
    after = one.ledger.entries()[0]
    assert after.memory_bytes >= len(ballast)
    known = one.ledger.known("cnn mnist 128")
    assert known is not None
    assert known.memory_bytes == after.memory_bytes


def test_limits_of_jobs_and_policy(worker: Callable[..., Arbiter]) -> None:
    """`--max-jobs 1` and `latency` leave the second job waiting; a group takes all processors of a worker."""
    container = Container()
    train(worker("one", container), "a")
    assert worker("two", container, most_jobs=1).decide(KIND) is None
    assert worker("two", container, "latency").decide(KIND) is None
    assert worker("two", container).decide(replace(KIND, is_group=True)) is None
    assert worker("two", container).decide(KIND) is not None


def test_a_job_that_ran_out_of_memory_waits_for_no_new_one(worker: Callable[..., Arbiter]) -> None:
    one = worker("one", Container())
    train(one, "a")
    one.share.require_alone()
    assert worker("two", Container()).decide(KIND) is None


def test_jobs_that_ran_out_of_memory_at_once_do_not_wait_for_each_other(worker: Callable[..., Arbiter]) -> None:
    """The oldest goes first, once those that never ran out of memory have ended."""
    workers = [worker(name, Container(cores=4)) for name in "abc"]
    one, two, three = workers
    for arbiter in workers:
        train(arbiter, arbiter._name)
    two.share.require_alone()
    one.share.require_alone()
    assert [arbiter.share.waits_for_others() for arbiter in (one, two)] == [True, True]
    three.end()
    assert [arbiter.share.waits_for_others() for arbiter in (one, two)] == [False, True]
    one.end()
    assert not two.share.waits_for_others()


def test_a_quota_that_shrinks_leaves_each_of_three_jobs_one_processor(worker: Callable[..., Arbiter]) -> None:
    container = Container(cores=4)
    workers = [worker(name, container) for name in "abc"]
    for arbiter in workers:
        train(arbiter, arbiter._name, threads=4)
    assert sum(entry.processors for entry in workers[0].ledger.entries()) == 4
    container.found = replace(container.found, cores=1)
    workers[0].share._next_look = 0.0
    workers[0].share.look()
    assert [entry.processors for entry in workers[0].ledger.entries()] == [1, 1, 1]
    assert worker("d", container).decide(KIND) is None


def test_a_deterministic_job_keeps_the_threads_that_it_began_with(worker: Callable[..., Arbiter]) -> None:
    container = Container()
    one, two = worker("one", container), worker("two", container)
    train(one, "a")
    assert train(two, "b", fixed=True) == 1
    one.end()
    assert two.ledger.entries()[0].most == 1
    assert two.ledger.entries()[0].is_fixed


def test_one_worker_looks_for_a_job_at_a_time(worker: Callable[..., Arbiter]) -> None:
    one, two = worker("one", Container()), worker("two", Container())
    turn = one.turn()
    assert turn is not None
    assert two.turn() is None
    os.close(turn)
    turn = two.turn()
    assert turn is not None
    os.close(turn)


def test_a_damaged_ledger_is_an_empty_one(worker: Callable[..., Arbiter]) -> None:
    one = worker("one", Container())
    train(one, "a")
    (one.ledger.directory / "ledger.json").write_text("{")
    assert one.ledger.entries() == ()
    one.end()
    assert train(one, "b") == 2


def test_a_state_directory_that_cannot_be_written_leaves_a_job_all(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arbiter = Arbiter(tmp_path / "file", "one", policy="throughput", look=Container().look)
    permission = arbiter.decide(KIND)
    assert permission is not None
    turn = arbiter.turn()
    assert turn is not None
    os.close(turn)
    arbiter.begin("a", "a", KIND, permission)
    assert arbiter.share.file is None
    assert arbiter.share.begin(Usage(threads=2, speeds=(), is_fixed=False, memory_bytes=None)) == 2
    arbiter.end()


def test_a_disk_that_is_full_costs_no_open_files(worker: Callable[..., Arbiter]) -> None:
    arbiter = worker("one", Container())
    (arbiter.ledger.directory / f".ledger.json.{os.getpid()}").mkdir(parents=True)  # no file can be written there
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(3):
        assert train(arbiter, "a") == 2
        arbiter.end()
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_a_job_that_starts_from_the_model_of_one_that_runs_waits_for_it(worker: Callable[..., Arbiter]) -> None:
    one, two = worker("one", Container()), worker("two", Container())
    train(one, "a")
    request = {"type": "preflight.train.v1", "dataset": "mnist", "model": "cnn"}
    tuned, other = (Candidate.of(TrainJob.model_validate({**request, "init_from": name})) for name in ("a", "b"))
    assert two.decide(tuned) is None
    assert two.decide(other) is not None


def test_a_request_is_of_the_kind_of_its_spec() -> None:
    job = TrainJob.model_validate({"type": "preflight.train.v1", "dataset": "mnist", "model": "cnn", "workers": 2})
    assert Candidate.of(job) == Candidate(kind="cnn mnist 128", is_group=True)


def test_no_job_begins_on_processors_of_workers_with_a_ledger_of_their_own(worker: Callable[..., Arbiter]) -> None:
    container = Container()
    one, two = worker("one", container), worker("two", container)
    train(one, "a", threads=1)
    assert two.decide(KIND, lambda: True) is None, "nobody has counted yet"
    one.ledger.update("one", lambda entry: replace(entry, used=1.0, foreign=0.9))
    assert two.decide(KIND, lambda: True) is None
    assert two.decide(KIND, lambda: False) is not None, "they are no workers"
    one.ledger.update("one", lambda entry: replace(entry, foreign=0.2))
    assert two.decide(KIND, lambda: True) is not None


def test_a_quota_leaves_a_job_what_others_of_a_large_host_do_not_hold(worker: Callable[..., Arbiter]) -> None:
    container = Container()
    container.found = replace(container.found, quota=2.0, affinity=frozenset(range(64)))
    one, two = worker("one", container), worker("two", container)
    train(one, "a", threads=1)
    one.ledger.update("one", lambda entry: replace(entry, foreign=60.0))
    assert two.decide(KIND, lambda: True) is not None


def test_the_load_tells_a_job_from_other_processes() -> None:
    meter, busy = LoadMeter(), [sys.executable, "-c", "while True: pass"]
    with contextlib.ExitStack() as stack:
        job, other = (stack.enter_context(subprocess.Popen(busy)) for _ in range(2))
        try:
            assert meter.look([job.pid], []) is None
            assert meter.look([job.pid], []) is None, "less than half a second is told"
            time.sleep(1.0)
            found = meter.look([job.pid], [])
            time.sleep(1.0)
            assert meter.look([job.pid], ["another job"]) is None, "a time is told that others had in part"
        finally:
            job.kill()
            other.kill()
    assert found is not None
    assert 0.1 < found.used < 1.2
    assert found.others > 0.1


def test_freed_processors_are_taken_once_nobody_else_holds_them(tmp_path: Path) -> None:
    """Times of /proc/stat in hundredths of a second: another worker's training took over what one of ours left."""
    stat, mine = tmp_path / "proc" / "stat", tmp_path / "processors"
    stat.parent.mkdir()
    mine.write_text("1")
    allowed = sorted(os.sched_getaffinity(0))
    watch = LimitWatch(
        MemoryUse(), tmp_path, affinity=lambda: 2, shared=SharedThreads(file=mine, threads=2, speeds=CNN)
    )  # fmt: skip
    mine.write_text("0")
    taken, ticks = [], 0
    for held in (0, 1, 1, 0, 0):
        ticks += 100_000 * held
        stat.write_text("".join(f"cpu{cpu} {ticks} 0 0 0 0 0 0 0\n" for cpu in allowed))
        change = watch.shared()
        taken.append(None if change is None else change.after)
    assert taken == [None, None, None, 2, None]


def test_a_thousand_short_jobs_leave_a_long_one_its_share(worker: Callable[..., Arbiter], tmp_path: Path) -> None:
    """Each takes a processor and gives it back; the training takes it only once nobody has followed for a moment."""
    container = Container()
    long, short = worker("long", container), worker("short", container)
    train(long, "long")
    assert long.share.file is not None
    shared = SharedThreads(file=long.share.file, threads=2, speeds=CNN)
    watch = LimitWatch(MemoryUse(), tmp_path, shared=shared)  # where nobody tells what others hold
    seen = set()
    for number in range(50):  # more would tell no more
        train(short, f"short-{number}")
        change = watch.shared()
        seen.add(None if change is None else change.after)
        short.end()
        assert watch.shared() is None
        assert len(long.ledger.entries()) == 1
    assert seen == {1, None}
    change = watch.shared()
    assert change is not None
    assert (change.before, change.after) == (1, 2)
    assert change.slowdown(1, 2) == pytest.approx(10 / 14)
