"""Standby: jobs share one fork server, which goes with its worker, when no job comes and when it has to."""

import os
import signal
from pathlib import Path

import psutil
import pytest
from support.worker.services import StartWorker, Worker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.container.resources import detect
from tools.faults.container import is_standby
from worker.config.settings import Settings
from worker.jobs import fork_server
from worker.queue import standby
from worker.queue.standby import Standby


def servers(worker: Worker) -> list[psutil.Process]:
    """Return the fork servers of a worker."""
    return [process for process in psutil.Process(worker.process.pid).children() if is_standby(process)]


def ended(process: psutil.Process) -> bool:
    """Whether a process has ended, waited for or not."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def run_job(client: Client, job_id: str, **fields: object) -> None:
    """Run a job to its end."""
    client.enqueue(digits_job(job_id=job_id, **fields))
    assert wait_for(client, job_id).status == "finished"


def test_jobs_share_one_server_which_ends_with_the_worker(client: Client, start_worker: StartWorker) -> None:
    """It is started for the first job; the worker never imports torch."""
    worker = start_worker()
    wait_until(lambda: "worker_started" in worker.output())
    assert servers(worker) == []
    run_job(client, "first")
    (server,) = servers(worker)
    run_job(client, "second", calibrate=True)
    assert servers(worker) == [server]
    assert worker.output().count("standby_kept") == 1  # with its memory
    assert "libtorch" in Path(f"/proc/{server.pid}/maps").read_text()
    assert "libtorch" not in Path(f"/proc/{worker.process.pid}/maps").read_text()
    worker.stop()
    assert not server.is_running()


def test_it_dies_with_a_killed_worker(client: Client, start_worker: StartWorker) -> None:
    worker = start_worker()
    run_job(client, "job")
    (server,) = servers(worker)
    os.kill(worker.process.pid, signal.SIGKILL)
    wait_until(lambda: ended(server))


@pytest.fixture
def kept(settings: Settings) -> Standby:
    """A standby whose server runs."""
    kept = Standby(settings)
    kept.prepare()
    assert kept.server is not None
    assert kept.server.running()
    return kept


def test_it_is_let_go_after_idle_minutes(kept: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    """And started again for the next job."""
    assert kept.server is not None
    kept.job_ended()
    assert kept.due()
    kept.step()
    assert kept.server.running()
    monkeypatch.setattr(standby, "IDLE_SECONDS", 0.0)
    kept.step()
    assert not kept.server.running()
    kept.prepare_idle()  # as each look for a seat does: it would start and end every few seconds
    assert not kept.server.running()
    kept.prepare()
    assert kept.server.running()
    kept.stop()


def test_it_is_let_go_where_memory_is_short(kept: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept.server is not None
    monkeypatch.setattr(standby, "memory_is_low", lambda shares: shares == 1)
    kept.step()
    kept.prepare_idle()
    assert not kept.server.running()
    monkeypatch.undo()
    kept.prepare_idle()
    assert kept.server.running()
    kept.stop()


def test_a_small_container_has_none(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "MIN_BYTES", detect().memory_bytes + 1)
    kept = Standby(settings)
    kept.prepare()
    assert kept.server is None
    assert not kept.due()
    kept.job_ended()
    kept.stop()


def test_a_limit_on_processes_is_a_warning(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's children tell it, too, if it lasts."""
    kept = Standby(settings)
    assert kept.server is not None

    def refuse() -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(kept.server, "start", refuse)
    kept.prepare()
    assert not kept.server.running()
