"""Jobs that run at the same time on one host: a real worker, its companion, a real Redis."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pydantic import TypeAdapter
from redis import Redis
from rq import Queue
from support.worker.services import StartWorker, Worker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.container.resources import detect
from preflight.queue.untrusted_job import fetch_job
from preflight.redis import keys
from preflight.wire import AnyEvent, PlanAdapted, ProcessorsShared, unflatten
from tools.faults.container import is_standby
from tools.faults.means import NotHere, memory_limit
from worker.admission.admit import AdmittedJob
from worker.cli.diagnosis.health import check_health
from worker.config.settings import Settings
from worker.jobs.worker_context import WorkerContext
from worker.queue.loop import packing as packing_module
from worker.queue.loop.packing import Packing
from worker.state.control import StopSignal
from worker.state.packing.arbiter import Arbiter, Candidate
from worker.state.packing.share import Usage
from worker.state.signals import FORWARDED

PACKED = {"PREFLIGHT_PACKING": "throughput", "PREFLIGHT_STANDBY": "auto"}


@pytest.fixture
def packing(start_worker: StartWorker) -> Iterator[Worker]:
    if detect().cores < 2:
        pytest.skip("two jobs at a time need two cores")
    yield start_worker(environment=PACKED)


def history(connection: Redis, job_id: str) -> list[AnyEvent]:
    """Return the events of a job so far."""
    records = TypeAdapter(list[tuple[str, dict[str, str]]]).validate_python(connection.xrange(keys.events(job_id)))
    return [unflatten(fields) for _, fields in records]


def shared(connection: Redis, job_id: str) -> list[ProcessorsShared]:
    return [event for event in history(connection, job_id) if isinstance(event, ProcessorsShared)]


def running(client: Client, *job_ids: str) -> bool:
    return all(client.status(job_id).status == "running" for job_id in job_ids)


@pytest.mark.covers_children
def test_a_waiting_job_begins_where_two_do_more_and_gives_back_what_it_had(
    client: Client, connection: Redis, packing: Worker, settings: Settings
) -> None:
    """The first gives up a thread at once, and has all processors again when the second has ended.

    It takes them once nobody else holds them, which other tests may: tests/unit/worker/state/packing shows that.
    """
    client.enqueue(digits_job(job_id="long", epochs=400, plan={"threads": 2}))
    client.enqueue(digits_job(job_id="short", epochs=3, plan={"threads": 2}))
    assert wait_for(client, "short").status == "finished", packing.output()
    assert client.status("long").status == "running"
    wait_until(lambda: len(shared(connection, "long")) >= 2)
    begun, ended = shared(connection, "long")[:2]
    assert (begun.processors, begun.of_processors, begun.shared_with) == (1, 2, ("short",))
    assert (ended.processors, ended.shared_with) == (2, ())
    assert len([each for each in psutil.Process(packing.process.pid).children(recursive=True) if is_standby(each)]) == 1
    (second,) = shared(connection, "short")
    assert second.together is not None
    assert second.together >= 1.1

    def changes() -> list[tuple[int, int]]:
        events = history(connection, "long")
        return [(e.before, e.after) for e in events if isinstance(e, PlanAdapted) and "another training" in e.reason]

    assert changes() in ([], [(2, 1)], [(2, 1), (1, 2)], [(1, 2)])  # it may have begun when the second one was there
    assert check_health(settings).startswith("2 workers are alive")
    client.cancel("long")
    assert wait_for(client, "long").status == "cancelled"
    packing.stop()
    assert packing.output().count('"event": "worker_stopped"') == 2


@pytest.mark.slow
def test_a_stop_saves_both_jobs_and_leaves_them_in_their_order(
    client: Client, connection: Redis, packing: Worker
) -> None:
    """At the front of the queue, before one that waits; a worker that starts later ends them."""
    jobs = ("first", "second", "third")
    for job_id in jobs:
        client.enqueue(digits_job(job_id=job_id, epochs=400, plan={"threads": 2}))
    wait_until(lambda: running(client, "first", "second"), seconds=60)
    wait_until(lambda: all(client.status(job_id).step is not None for job_id in jobs[:2]), seconds=60)
    packing.stop()
    assert connection.lrange("rq:queue:preflight", 0, -1) == [*jobs]
    for job_id in jobs[:2]:
        kinds = [event.type for event in history(connection, job_id)]
        assert kinds[-1] == "job_interrupted"
        assert "checkpoint_saved" in kinds


def test_a_suspended_queue_starts_no_second_job(client: Client, packing: Worker, raw: Redis) -> None:
    client.enqueue(digits_job(job_id="one", epochs=400, plan={"threads": 2}))
    wait_until(lambda: client.status("one").step is not None, seconds=60)
    raw.set("rq:suspended", 1)
    client.enqueue(digits_job(job_id="two", epochs=1, plan={"threads": 2}))
    client.cancel("one")
    assert wait_for(client, "one").status == "cancelled"
    assert client.status("two").status == "queued"
    raw.delete("rq:suspended")
    assert wait_for(client, "two").status == "finished"
    packing.stop()


GREEDY = """
import mmap
import time
from pathlib import Path

from torch import nn

NOW = Path(__file__).with_name("now")


class Greedy(nn.Linear):
    def forward(self, images):
        if self.training and not NOW.exists():
            time.sleep(0.05)
        elif not self.training and NOW.exists():
            held = mmap.mmap(-1, 900 << 20)
            for page in range(0, len(held), 4096):
                held[page] = 1
            time.sleep(0.2)
        return super().forward(images.flatten(1))


def build(shape, classes):
    return Greedy(shape[0] * shape[1] * shape[2], classes)
"""


@pytest.mark.slow
def test_memory_that_runs_out_for_two_jobs_costs_neither_a_retry_nor_a_smaller_batch(
    client: Client, connection: Redis, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Two jobs take more than they did when they began: each has room alone, both have not.

    The one that the kernel kills waits for the other to end, and goes on as it was.
    """
    package = tmp_path / "site" / "greedy-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[preflight.models]\ngreedy = greedy:build\n")
    (package.parent / "greedy.py").write_text(GREEDY)
    jobs = ("one", "two")
    try:
        with memory_limit(2_000 << 20) as enter:
            worker = start_worker(environment={**PACKED, "PYTHONPATH": str(package.parent)}, prefix=enter)
            for job_id in jobs:
                client.enqueue(digits_job(job_id=job_id, model="greedy", epochs=4, plan={"threads": 2}))
            wait_until(lambda: running(client, *jobs), seconds=60)
            (package.parent / "now").touch()
            ended = [wait_for(client, job_id, seconds=180).status for job_id in jobs]
            worker.stop()
    except NotHere as why:
        pytest.skip(str(why))
    assert ended == ["finished", "finished"], worker.output()
    events = [event for job_id in jobs for event in history(connection, job_id)]
    assert any("tried again without" in event.model_dump().get("message", "") for event in events), worker.output()
    assert not [event for event in events if event.type == "out_of_memory" or event.attempt > 1]


def test_idle_workers_of_two_queues_look_for_jobs_in_turn(
    client: Client, settings: Settings, start_worker: StartWorker
) -> None:
    """An idle worker waits for a job with the turn, for 1.5 s at most, and would have it again at once."""
    clients = (client, Client(settings.redis_url, queue="other"))
    workers = [start_worker(environment={**PACKED, "PREFLIGHT_QUEUE": name}) for name in ("preflight", "other")]
    wait_until(lambda: all("worker_started" in worker.output() for worker in workers), seconds=60)
    for number in range(6):
        each, job_id = clients[number % 2], f"job-{number}"
        each.enqueue(digits_job(job_id=job_id, dataset="missing"))
        assert wait_for(each, job_id, seconds=15).status == "failed"
    for worker in workers:
        worker.stop()


def test_a_companion_shares_with_its_worker_after_its_processors_have_changed(
    client: Client, connection: Redis, start_worker: StartWorker
) -> None:
    """Workers on other processors have another ledger; a companion is not to look there for its worker's job."""
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2 or detect().cores < 2:
        pytest.skip("two jobs at a time need two cores")
    worker = start_worker(environment=PACKED, prefix=["taskset", "-c", str(processors[0])])
    wait_until(lambda: "worker_started" in worker.output())
    psutil.Process(worker.process.pid).cpu_affinity(processors)
    client.enqueue(digits_job(job_id="long", epochs=400, plan={"threads": 2}))
    client.enqueue(digits_job(job_id="short", epochs=3, plan={"threads": 2}))
    assert wait_for(client, "short").status == "finished", worker.output()
    assert [event.shared_with for event in shared(connection, "short")] == [("long",)]
    worker.stop()


@pytest.mark.slow
def test_a_worker_that_ends_with_its_queue_looks_after_companions(client: Client, start_worker: StartWorker) -> None:
    """The job of one that is killed is run again, and the worker ends after it."""
    client.enqueue(digits_job(job_id="short", epochs=20, plan={"threads": 2}))
    client.enqueue(digits_job(job_id="long", epochs=200, plan={"threads": 2}))
    worker = start_worker("--burst", environment=PACKED)
    assert wait_for(client, "short").status == "finished"
    assert client.status("long").status == "running"
    children = psutil.Process(worker.process.pid).children
    wait_until(lambda: {each.name() for each in children()} == {"fork-server", "companion"})  # no report is made
    time.sleep(15)  # the worker itself finds nothing more to do
    next(each for each in children() if each.name() == "companion").kill()
    assert wait_for(client, "long").status == "finished", worker.output()
    assert worker.wait() == 0


@pytest.fixture
def context(raw: Redis, queue: Queue, settings: Settings) -> WorkerContext:
    return WorkerContext(raw, queue, "worker", settings.model_copy(update={"packing": "throughput"}), StopSignal())


def admitted(job_id: str, connection: Redis) -> AdmittedJob:
    return AdmittedJob(fetch_job(job_id.encode(), connection), digits_job(), job_id)


def test_companions_get_their_time_to_save_from_the_signal_on(
    client: Client, raw: Redis, context: WorkerContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that ends with its queue may have waited for them for hours by then."""
    monkeypatch.setattr(packing_module, "STOP_TIMEOUT", 3.0)

    def save_slowly() -> None:
        signal.signal(FORWARDED, lambda *_: None)
        (tmp_path / "ready").touch()
        signal.pause()
        time.sleep(0.5)
        (tmp_path / "saved").touch()

    packing = Packing(context, save_slowly)
    for job_id in ("one", "two"):
        client.enqueue(digits_job(job_id=job_id))
    packing.begin(admitted("one", raw))
    assert packing.arbiter is not None
    packing.arbiter.share.begin(Usage(threads=1, speeds=(), is_fixed=False, memory_bytes=1))
    packing.grow()
    wait_until((tmp_path / "ready").exists)

    def stop() -> None:
        context.stop.times = 1
        packing.forward_stop()

    threading.Timer(4.0, stop).start()
    packing.join(burst=True)
    packing.end()
    assert (tmp_path / "saved").exists()


def test_a_job_that_was_taken_begins_where_redis_does_not_answer_then(
    client: Client, raw: Redis, context: WorkerContext, settings: Settings
) -> None:
    """It would have been quarantined."""
    client.enqueue(digits_job(job_id="one"))
    job = admitted("one", raw)
    other = Arbiter(settings.state_dir, "other", policy="throughput")
    other.begin("other", "other", Candidate(kind="known"), other.unmeasured())
    other.share.begin(Usage(threads=1, speeds=(), is_fixed=False, memory_bytes=1))
    packing = Packing(replace(context, connection=Redis(unix_socket_path="/nowhere")), None)
    packing.begin(job)
    assert [entry.job_id for entry in other.ledger.entries()] == ["other", "one"]
    packing.end()
    other.end()


@pytest.mark.slow
def test_two_workers_of_one_disk_look_at_each_other(
    client: Client, connection: Redis, packing: Worker, start_worker: StartWorker
) -> None:
    """A second worker without a limit takes a job only where both together do more, and then both have their share."""
    other = start_worker("--processes", "1", environment=PACKED)
    client.enqueue(digits_job(job_id="one", epochs=400, plan={"threads": 2}))
    wait_until(lambda: client.status("one").step is not None, seconds=60)
    client.enqueue(digits_job(job_id="fixed", epochs=1, deterministic=True, plan={"threads": 2}))
    assert wait_for(client, "fixed").status == "finished"
    (had,) = shared(connection, "fixed")
    assert (had.processors, had.shared_with) == (1, ("one",))
    client.cancel("one")
    wait_for(client, "one")
    packing.stop()
    other.stop()
