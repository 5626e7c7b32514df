"""Idle calibration: while the queue is empty a search goes on, for the next job; a job that comes ends it at once."""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from redis import Redis
from support.worker.services import RunWorker, StartWorker, Worker, digits_job, wait_for
from support.worker.services import wait_until as wait_seconds

from calibration.cache.lock import calibration_lock
from calibration.cache.plan_cache import PLANS, TRIALS, PlanCache
from calibration.cache.trial_log import PLAN, TrialLog
from calibration.cache.unfinished import MAX_TRIES, SCHEMA, UnfinishedSearch, UnfinishedSearches
from calibration.choose import IDLE_WHY
from calibration.result import CalibrationResult
from preflight import Client
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.files.journal import read_runs
from preflight.wire import CalibrationWinner
from worker.config.settings import Settings
from worker.queue.maintenance import idle_calibration
from worker.queue.maintenance.idle_calibration import IdleCalibration
from worker.queue.work_horse import WorkHorse
from worker.state.control import StopSignal
from worker.web.listing.overview import read_overview

ON = {"PREFLIGHT_IDLE_CALIBRATION": "on"}
SEARCH = UnfinishedSearch(
    schema=SCHEMA, key="a", trials_key="a", created=time.time(),
    spec=TrainSpec(dataset="digits", model="cnn", batch_size=32, epochs=2),
    own=Plan(threads=1, micro_batch=32), store=Path("/nowhere"), samples=None, seconds=45.0, knobs=None, peak_bytes=0,
)  # fmt: skip

wait_until = partial(wait_seconds, seconds=120.0)
"""Measuring at idle priority takes long beside anything else."""


@pytest.fixture(scope="module")
def kept_caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("idle")


@pytest.fixture
def cache_dir(kept_caches: Path) -> Path:
    """A cache without plans; its path is always the same, as searches name data sets in it."""
    path = kept_caches / "cache"
    shutil.rmtree(path, ignore_errors=True)
    return path


@pytest.fixture
def searched(client: Client, settings: Settings, kept_caches: Path, run_worker: RunWorker) -> UnfinishedSearches:
    """The only search that a job's calibration has left in the cache; it is made once for all tests."""
    copy = kept_caches / "copy"
    if copy.exists():
        shutil.copytree(copy, settings.cache_dir)
    else:
        client.enqueue(digits_job(job_id="first", calibrate=True))
        run_worker(environment=ON)
        assert client.status("first").status == "finished"
        shutil.copytree(settings.cache_dir, copy)
    searches = UnfinishedSearches(settings.cache_dir)
    assert len(searches.waiting()) == 1
    return searches


def run_job(client: Client, job_id: str, **fields: object) -> CalibrationWinner:
    """Run a job that calibrates, and return the event that names its plan."""
    client.enqueue(digits_job(job_id=job_id, calibrate=True, **fields))
    assert wait_for(client, job_id).status == "finished"
    (winner,) = [event for event in client.events(job_id, timeout=5) if isinstance(event, CalibrationWinner)]
    return winner


def kept(settings: Settings) -> CalibrationResult:
    """Return the only finding in the cache."""
    (entry,) = PlanCache(settings.cache_dir).entries()
    assert entry.plan is not None, entry.fault
    return entry.plan.finding


def doubt(settings: Settings) -> None:
    """Have the finding in the cache be one that was disturbed, as it is where a neighbour works."""
    (entry,) = PlanCache(settings.cache_dir).entries()
    path = settings.cache_dir / PLANS[0] / f"{entry.key}{PLANS[1]}"
    path.write_text(re.sub(r'"confidence": "high"', '"confidence": "low"', path.read_text()))


def measuring(worker: Worker) -> Sequence[psutil.Process]:
    """Return the processes of a worker that measure in idle time, their parent first."""
    children = psutil.Process(worker.process.pid).children(recursive=True)
    return [child for child in children if os.sched_getscheduler(child.pid) == os.SCHED_IDLE]


def gone(process: psutil.Process) -> bool:
    """Whether a process has ended, waited for or not."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def await_measuring(worker: Worker) -> Sequence[psutil.Process]:
    """Wait until a child measures in idle time; return all the processes of that."""
    wait_until(lambda: "idle_calibration_started" in worker.output() and len(measuring(worker)) > 1)
    return measuring(worker)


def kill_measuring(worker: Worker) -> None:
    """Kill the process that measures in children, and stop its worker."""
    await_measuring(worker)[0].kill()
    wait_until(lambda: "idle_calibration_died" in worker.output())
    worker.stop()


def attempted(settings: Settings) -> list[Plan]:
    """Return the plans that were begun, from the log of trials."""
    (path,) = (settings.cache_dir / TRIALS[0]).iterdir()
    records = [record for record in read_runs(path) if record.kind == "attempt"]
    return [PLAN.validate_python(record.payload["plan"], strict=False) for record in records]


def test_a_later_job_gets_what_idle_time_found(
    client: Client, settings: Settings, run_worker: RunWorker, start_worker: StartWorker, raw: Redis
) -> None:
    """The service shows meanwhile what is measured."""
    client.enqueue(digits_job(job_id="first", calibrate=True, calibration_knobs=("threads", "interop")))
    run_worker(environment=ON)
    assert not kept(settings).idle
    (left,) = UnfinishedSearches(settings.cache_dir).waiting()
    doubt(settings)
    worker = start_worker(environment=ON)
    await_measuring(worker)
    wait_until(lambda: bool(read_overview(raw, settings.queue).workers[0].calibrating))
    assert read_overview(raw, settings.queue).workers[0].calibrating == left.workload
    wait_until(lambda: "idle_calibration_done" in worker.output())
    found = kept(settings)
    assert found.idle
    assert found.budget_s == left.seconds  # all the time that a calibration may take
    assert not found.baseline.compile
    # It is tried again after a pause where the machine was not quiet.
    wait_until(lambda: read_overview(raw, settings.queue).workers[0].calibrating is None)
    winner = run_job(client, "second", calibration_knobs=("threads", "interop"))
    assert (winner.cache, winner.why) == ("hit", IDLE_WHY)


def test_a_job_ends_it(
    client: Client, settings: Settings, searched: UnfinishedSearches, start_worker: StartWorker, tmp_path: Path
) -> None:
    """All its processes have idle priority; its end leaves no suspicion and costs no try, and it goes on later."""
    worker = start_worker(environment={**ON, "TMPDIR": str(tmp_path)})
    processes = await_measuring(worker)
    assert b"libtorch" not in Path(f"/proc/{worker.process.pid}/maps").read_bytes()
    print([f"{process.name()} {process.memory_full_info().pss >> 20} MiB PSS" for process in processes])
    client.enqueue(digits_job(job_id="second"))
    wait_for(client, "second", "running", "finished")
    assert all(gone(process) for process in processes)
    assert wait_for(client, "second").status == "finished"
    output = worker.output()
    (line,) = [line for line in output.splitlines() if "idle_calibration_stopped" in line]
    print(re.findall(r"ended_in_s\W+([0-9.]+)", line), "s from the job to the end of the idle processes")
    assert "still_ending" not in line
    assert not list(tmp_path.glob("preflight-idle-*"))
    wait_until(lambda: output != worker.output() and worker.output().count("idle_calibration_started") > 1)
    (waiting,) = searched.waiting()
    assert waiting.tries == 1  # that of the search that goes on now
    worker.stop()
    (log,) = (settings.cache_dir / TRIALS[0]).iterdir()
    assert attempted(settings)
    assert not [plan for plan in attempted(settings) if TrialLog(log).crashed_before(plan)]


@pytest.mark.usefixtures("searched")
def test_it_ends_with_its_worker(start_worker: StartWorker) -> None:
    """Stopped or killed."""
    worker = start_worker(environment=ON)
    processes = await_measuring(worker)
    worker.stop()
    assert all(gone(process) for process in processes)
    worker = start_worker(environment=ON)
    processes = await_measuring(worker)
    worker.process.kill()
    wait_until(lambda: all(gone(process) for process in processes))


def test_off_notes_nothing(client: Client, settings: Settings, start_worker: StartWorker) -> None:
    start_worker()
    run_job(client, "first")
    assert UnfinishedSearches(settings.cache_dir).waiting() == []


@pytest.mark.usefixtures("searched")
def test_off_is_off(start_worker: StartWorker) -> None:
    """What was noted before does not go on."""
    worker = start_worker()
    wait_until(lambda: "worker_started" in worker.output())
    time.sleep(2 * idle_calibration.IDLE_SECONDS)
    assert not measuring(worker)
    worker.stop()
    assert "idle_calibration" not in worker.output()


def test_a_search_that_dies_is_left_alone_in_the_end(searched: UnfinishedSearches, start_worker: StartWorker) -> None:
    """As one does under which a container runs out of memory."""
    for tries in range(MAX_TRIES):
        assert [each.tries for each in searched.waiting()] == [tries]
        kill_measuring(start_worker(environment=ON))
    assert searched.waiting() == []


def test_a_search_of_another_container_waits(searched: UnfinishedSearches, start_worker: StartWorker) -> None:
    """And one that needs more memory than is free; the worker does not try it again at once."""
    (left,) = searched.waiting()
    searched.remove(left)
    searched.add(replace(left, key="0" * 32))
    searched.add(replace(left, peak_bytes=1 << 50))
    worker = start_worker(environment=ON)
    wait_until(lambda: "worker_started" in worker.output())
    time.sleep(3 * idle_calibration.IDLE_SECONDS)
    worker.stop()
    assert "idle_calibration_started" not in worker.output()
    assert {each.tries for each in searched.waiting()} == {0}


@pytest.mark.usefixtures("searched")
def test_a_worker_that_is_suspended_measures_nothing(start_worker: StartWorker, raw: Redis) -> None:
    worker = start_worker(environment=ON)
    processes = await_measuring(worker)
    raw.set("rq:suspended", 1)
    wait_until(lambda: "idle_calibration_stopped" in worker.output())
    assert all(gone(process) for process in processes)
    raw.delete("rq:suspended")
    wait_until(lambda: worker.output().count("idle_calibration_started") > 1)


def test_it_gives_way_to_a_calibration_beside_it(
    settings: Settings, searched: UnfinishedSearches, start_worker: StartWorker
) -> None:
    """Of another worker, or of `preflight train`, on this machine."""
    worker = start_worker(environment=ON)
    processes = await_measuring(worker)
    with calibration_lock(settings.cache_dir, lambda: None, 1.0) as alone:
        assert alone
        wait_until(lambda: all(gone(process) for process in processes))
        wait_until(lambda: [each.tries for each in searched.waiting()] == [0])
    worker.stop()
    assert "idle_calibration_died" not in worker.output()


@pytest.fixture
def chore(settings: Settings) -> Iterator[IdleCalibration]:
    """A chore with a search that goes on in a real process."""
    settings = settings.model_copy(update={"idle_calibration": "on"})
    UnfinishedSearches(settings.cache_dir).add(SEARCH)

    def fork(run: object) -> WorkHorse:  # noqa: ARG001 - what is measured does not matter here
        horse = WorkHorse(None, lambda: time.sleep(600), StopSignal(), lambda: True, lambda: None, timeout=-1)
        horse.start()
        return horse

    chore = IdleCalibration(settings, StopSignal(), fork)
    yield chore
    chore.stop()


def measured(chore: IdleCalibration) -> str | None:
    """Return the workload that goes on."""
    return chore.workload


def test_it_ends_where_memory_is_short(chore: IdleCalibration, monkeypatch: pytest.MonkeyPatch) -> None:
    """And begins with none."""
    monkeypatch.setattr(idle_calibration, "IDLE_SECONDS", 0.0)
    chore.step(True)
    chore.step(True)
    assert measured(chore) == "cnn on digits"
    monkeypatch.setattr(idle_calibration, "memory_is_low", lambda shares: shares == 1)
    chore.step(True)
    assert measured(chore) is None
    monkeypatch.undo()
    chore.step(True)
    assert measured(chore) is None  # memory that was short is not taken again at once


def test_it_waits_until_nothing_else_is_to_be_done(chore: IdleCalibration, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        chore.step(True)
        assert measured(chore) is None  # a job may follow
    monkeypatch.setattr(idle_calibration, "IDLE_SECONDS", 0.0)
    chore.step(False)
    chore.step(True)
    chore.step(True)
    assert measured(chore) == "cnn on digits"
    chore.step(False)
    assert measured(chore) is None


def test_a_full_disk_is_a_warning(chore: IdleCalibration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_calibration, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", "/dev/full")
    chore.step(True)
    chore.step(True)
    assert measured(chore) is None
