"""`rq suspend` and `rq resume`: suspended workers take no job, and everything that shows workers says so."""

import signal

import pytest
from redis import Redis
from rq.command import send_shutdown_command
from rq.suspension import resume, suspend
from support.worker.command_line import run
from support.worker.services import RunWorker, StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.redis.keys import RQ_SUSPENDED
from worker.config.settings import Settings
from worker.web.listing.overview import Overview, read_overview


def states(raw: Redis) -> list[str]:
    return [worker.state for worker in read_overview(raw, "preflight").workers]


def test_a_suspended_worker_takes_no_job(client: Client, raw: Redis, start_worker: StartWorker) -> None:
    """The running job goes on; the next one waits until workers are resumed."""
    client.enqueue(digits_job(job_id="running", epochs=3))
    worker = start_worker()
    wait_for(client, "running", "running")
    suspend(raw)
    client.enqueue(digits_job(job_id="waiting"))
    assert states(raw) == ["busy"]
    assert wait_for(client, "running").status == "finished"
    wait_until(lambda: "worker_suspended" in worker.output())  # the state is set before the line is written
    assert states(raw) == ["suspended"]
    assert client.status("waiting").status == "queued"
    assert worker.output().count("worker_suspended") == 1
    assert "worker_resumed" not in worker.output()
    resume(raw)
    assert wait_for(client, "waiting").status == "finished"
    wait_until(lambda: states(raw) == ["idle"])
    assert worker.output().count("worker_suspended") == worker.output().count("worker_resumed") == 1


def test_in_burst_mode_a_suspended_worker_exits(client: Client, raw: Redis, run_worker: RunWorker) -> None:
    """As RQ's own does, with 0. The key may have any type."""
    raw.hset(RQ_SUSPENDED, "by", "hand")
    client.enqueue(digits_job(job_id="waiting"))
    assert "worker_suspended" in run_worker().output()
    assert client.status("waiting").status == "queued"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["signal", "command"])
def test_a_suspended_worker_can_be_stopped(raw: Redis, start_worker: StartWorker, how: str) -> None:
    suspend(raw)
    worker = start_worker()
    wait_until(lambda: states(raw) == ["suspended"])
    if how == "command":
        send_shutdown_command(raw, read_overview(raw, "preflight").workers[0].name)
    else:
        worker.process.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0, worker.output()
    assert raw.smembers("rq:workers") == set()


def test_a_worker_is_suspended_after_a_data_loss_too(raw: Redis, start_worker: StartWorker) -> None:
    suspend(raw)
    worker = start_worker()
    wait_until(lambda: "worker_suspended" in worker.output())
    raw.delete(f"rq:worker:{read_overview(raw, 'preflight').workers[0].name}")
    wait_until(lambda: states(raw) == ["suspended"])
    assert worker.output().count("worker_suspended") == 1


def test_a_suspension_is_shown(settings: Settings, raw: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `preflight jobs` on stderr, `preflight doctor` and the overview, until workers are resumed."""
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", settings.redis_url)
    assert not read_overview(raw, "preflight").suspended
    assert run("jobs").stderr == ""
    suspend(raw)
    assert read_overview(raw, "preflight") == Overview(
        queue="preflight", depth=0, running=0, suspended=True, workers=(),
        notice="Workers are suspended and take no job; `rq resume` ends it.",
    )  # fmt: skip
    assert run("jobs").stderr == "workers are suspended and take no job; `rq resume` ends it\n"
    assert "warn  suspended" in run("doctor").stdout
