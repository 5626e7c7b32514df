"""Jobs through a real Redis and real worker processes."""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from pydantic import JsonValue
from redis import Redis
from rq import Callback, Queue, Retry
from rq.command import send_stop_job_command
from rq.job import Job
from rq.serializers import JSONSerializer
from structlog.testing import capture_logs
from support.worker.services import RunWorker, StartWorker, Worker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.events.sentences import as_sentence
from preflight.redis import keys
from preflight.redis.connection import GLANCE_TIMEOUT, SOCKET_TIMEOUT, shorten_waits
from preflight.wire import (
    JobStarted,
    LoaderConfig,
    Progress,
    ReportReady,
    TrainingDone,
)
from tools.faults.container import is_standby
from tools.faults.machines import RedisServer
from training.artifacts.model_dir import MANIFEST, MODEL, REPORT
from worker.admission import quarantine
from worker.broker.connect import ClockSkew, connect
from worker.config.settings import Settings
from worker.queue.worker import PreflightWorker
from worker.state.worker_lock import DIRECTORY


def rq_job(queue: Queue, job_id: str) -> Job:
    return Job.fetch(job_id, connection=queue.connection, serializer=JSONSerializer)


def test_a_worker_warns_of_missing_bytecode(run_worker: RunWorker, tmp_path: Path) -> None:
    worker = run_worker({"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode"), "PYTHONDONTWRITEBYTECODE": "1"})
    assert "bytecode_missing" in worker.output()
    assert "PYTHONDONTWRITEBYTECODE keeps Python from writing it" in worker.output()


@pytest.mark.covers_children
def test_a_job_is_trained_and_told(
    settings: Settings, client: Client, connection: Redis, queue: Queue, start_worker: StartWorker
) -> None:
    """Result, artifact, streams, state, lifecycle, meta and log agree on one calibrated job."""
    handle = client.enqueue(digits_job(job_id="one", epochs=2, calibrate=True, force_calibration=True))
    assert handle.created
    worker = start_worker("--burst", environment={"PREFLIGHT_REPORT": "auto"})
    assert isinstance([*client.events("one", timeout=60)][-1], TrainingDone | ReportReady)
    assert worker.wait() == 0
    events = list(client.events("one", timeout=60))

    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-2:]) == ("job_started", ["training_done", "report_ready"])
    assert set(kinds) >= {
        "resource_limits", "dataset_ready", "calibration_trial", "calibration_winner", "training_config",
        "dataloader_config", "progress", "epoch_done",
    }  # fmt: skip
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert {(event.job_id, event.attempt) for event in events} == {("one", 1)}

    done = events[-2]
    assert isinstance(done, TrainingDone)
    assert (done.extras, done.report) == ("report", None)
    result = client.result("one")
    assert result is not None
    assert (result.status, result.report) == ("finished", str(settings.artifact_dir / "one" / REPORT))
    assert Path(result.report or "").is_file()
    without_report = result.model_copy(update={"report": None})
    assert rq_job(queue, "one").return_value() == without_report.model_dump(mode="json", exclude_none=True)
    assert (result.test_accuracy, result.model_sha256) == (done.test_accuracy, done.model_sha256)
    assert result.predicted_epoch_s is not None
    assert result.measured_epoch_s is not None
    assert result.plan is not None

    directory = settings.artifact_dir / "one"
    assert result.artifact == str(directory)
    manifest = json.loads((directory / MANIFEST).read_text())
    assert manifest["sha256"][MODEL] == result.model_sha256
    assert manifest["spec"]["epochs"] == 2

    state = client.status("one")
    assert (state.status, state.epoch, state.epochs) == ("finished", 2, 2)
    assert (state.test_accuracy, state.report) == (result.test_accuracy, result.report)
    lifecycle = [fields["type"] for _, fields in connection.xrange(keys.lifecycle("one")) or [] if fields]
    assert lifecycle == ["job_started", "calibration_winner", "training_done"]
    for key in (keys.events, keys.lifecycle, keys.state, keys.fence, keys.result):
        assert 0 < connection.ttl(key("one")) <= settings.state_ttl
    meta = rq_job(queue, "one").meta
    assert (meta["status"], meta["test_accuracy"]) == ("finished", result.test_accuracy)

    lines = [json.loads(line) for line in worker.output().splitlines()]
    assert all({"event", "message", "level", "ts"} <= set(line) for line in lines)
    assert all(line["message"] == as_sentence(line["message"]) for line in lines)
    logged = {line["event"]: line for line in lines}
    assert logged["job_started"]["request"]["epochs"] == 2
    assert 0 <= logged["job_started"]["waited_s"] <= logged["training_done"]["total_s"]
    fields = {
        "resource_limits": ("cpu_cores", "memory_mib", "source"),
        "calibration_winner": ("threads", "why"),
        "training_config": (
            "threads", "interop", "batch_size", "micro_batch", "precision", "memory_format", "allocator",
            "optimizer", "learning_rate", "schedule", "seed",
        ),
        "epoch_done": ("epoch", "loss", "val_acc", "samples_per_s", "took_s"),
        "training_done": ("test_accuracy", "dataset_sha256"),
    }  # fmt: skip
    assert not {"calibration_trial", "memory_probe", "dataloader_config"} & set(logged)  # of level debug
    for message, names in fields.items():
        assert set(names) <= set(logged[message]), message
        assert (logged[message]["job_id"], logged[message]["attempt"]) == ("one", 1)


BAD: dict[str, dict[str, JsonValue]] = {
    "epochs-zero": {"epochs": 0}, "epochs-negative": {"epochs": -1}, "epochs-huge": {"epochs": 1e9},
    "epochs-nan": {"epochs": float("nan")}, "epochs-string": {"epochs": "3"}, "epochs-true": {"epochs": True},
    "batch-zero": {"batch_size": 0}, "batch-huge": {"batch_size": 10**9},
    "batch-above-data": {"batch_size": 60_000, "dataset": "digits"},
    "unknown-field": {"epoch": 3}, "version": {"type": "preflight.train.v2"}, "dataset": {"dataset": "minst"},
    "model": {"model": "cnnn"}, "id-path": {"job_id": "../x"}, "id-nul": {"job_id": "a\0b"},
    "id-newline": {"job_id": "a\nb"}, "id-long": {"job_id": "a" * 300},
    "too-large": {"seed": 1, "model": "x" * 70_000},
}  # fmt: skip


@pytest.mark.covers_children
def test_bad_jobs_fail_in_one_sentence(
    settings: Settings, client: Client, queue: Queue, tmp_path: Path, run_worker: RunWorker
) -> None:
    """Published under RQ's id, never begun; other functions, callbacks and pickles do nothing."""
    job = {"type": "preflight.train.v1", "dataset": "mnist", "model": "cnn", "epochs": 1}
    calls: dict[str, tuple[object, ...]] = {job_id: ({**job, **fields},) for job_id, fields in BAD.items()}
    calls |= {"no-argument": (), "two-arguments": (1, 2), "a-list": ([],)}
    for job_id, arguments in calls.items():
        queue.enqueue("worker.jobs.train", args=arguments, job_id=job_id, retry=Retry(max=3))
    marker = tmp_path / "ran"
    queue.enqueue("os.system", f"touch {marker}", job_id="os-system")
    queue.enqueue(
        "worker.jobs.train", digits_job().model_dump(mode="json"), job_id="callbacks",
        on_success=Callback("os.abort"), on_failure=Callback("os.abort"), on_stopped=Callback("pathlib.Path.touch"),
    )  # fmt: skip
    Queue("preflight", connection=queue.connection).enqueue(os.system, f"touch {marker}", job_id="pickle")
    client.enqueue(digits_job(job_id="good"))
    run_worker()
    for job_id in calls:
        state = client.status(job_id)
        begun = int(job_id == "batch-above-data")  # only who has the data can know
        assert (job_id, state.status, state.reason, state.attempt) == (job_id, "failed", "invalid_config", begun)
        assert state.message
        assert "\n" not in state.message
        assert rq_job(queue, job_id).get_status() == "failed"
    assert not list(settings.artifact_dir.parent.glob("x*"))
    refused = client.status("os-system")
    assert (refused.status, refused.reason) == ("failed", "invalid_config")
    assert "'os.system' is not allowed on this queue" in (refused.message or "")
    statuses = [client.status(job_id).status for job_id in ("pickle", "callbacks", "good")]
    assert statuses == ["failed", "finished", "finished"]
    assert not marker.exists()


@pytest.mark.slow
def test_a_deterministic_job_keeps_its_first_plan(connection: Redis, client: Client, run_worker: RunWorker) -> None:
    plan = {"threads": 1, "micro_batch": 16, "eval_batch": 77}
    connection.set(keys.plan("kept"), json.dumps(plan))
    client.enqueue(digits_job(job_id="kept", deterministic=True, calibrate=True))
    run_worker()
    result = client.result("kept")
    assert result is not None
    assert result.plan is not None
    assert (result.plan.threads, result.plan.micro_batch, result.plan.eval_batch) == (1, 16, 77)


@pytest.mark.covers_children
def test_a_running_job_is_cancelled(
    client: Client, settings: Settings, connection: Redis, start_worker: StartWorker
) -> None:
    """It stops between two steps, leaves no artifact and no process, and the worker takes the next job."""
    client.enqueue(digits_job(job_id="long", epochs=10_000))
    worker = start_worker()
    asked = False
    for event in client.events("long", timeout=60):
        if isinstance(event, Progress) and not asked:
            asked = client.cancel("long")
            assert asked
    assert client.status("long").status == "cancelled"
    wait_until(lambda: not connection.exists(keys.cancel("long")))
    assert not (settings.artifact_dir / "long").exists()
    assert_runs_the_next_job(client, worker)


@pytest.mark.slow
@pytest.mark.covers_children
def test_a_running_job_with_a_second_entry_in_the_queue_is_cancelled(
    client: Client, raw: Redis, queue: Queue, start_worker: StartWorker
) -> None:
    """RQ enqueued its id again: the entry goes, and the running attempt reads the request, however it ends."""
    client.enqueue(digits_job(job_id="long", epochs=10_000))
    worker = start_worker()
    assert any(isinstance(event, Progress) for event in client.events("long", timeout=60))
    raw.rpush(queue.key, "long")
    assert client.cancel("long")
    assert wait_for(client, "long").status == "cancelled"
    ends = [event for event in client.lifecycle_events("long") if event.type.startswith(("job_canc", "job_int"))]
    assert [(event.type, event.attempt) for event in ends] == [("job_cancelled", 1)]
    wait_until(lambda: raw.hget(keys.rq_job("long"), "status") == b"stopped")  # recorded after the event
    assert_runs_the_next_job(client, worker)


@pytest.mark.covers_children
def test_a_stop_command_of_rq_cancels(client: Client, raw: Redis, queue: Queue, start_worker: StartWorker) -> None:
    """It names RQ's id, which may differ from the job's."""
    long = digits_job(job_id="own", epochs=10_000).model_dump(mode="json", exclude_unset=True)
    queue.enqueue("worker.jobs.train", args=(long,), job_id="of-rq")
    start_worker()
    wait_for(client, "own", "running")  # a job that Redis knows by RQ's id alone has no events to wait for
    assert any(isinstance(event, Progress) for event in client.events("own", timeout=60))
    send_stop_job_command(raw, "of-rq", serializer=JSONSerializer)
    assert wait_for(client, "own").status == "cancelled"


def assert_runs_the_next_job(client: Client, worker: Worker) -> None:
    """No process is left afterwards: the supervisor may take a moment to exit, its children may not."""
    client.enqueue(digits_job(job_id="next"))
    assert wait_for(client, "next").status == "finished"
    left = [process for process in psutil.Process(worker.process.pid).children(True) if not is_standby(process)]
    (*_, alive) = psutil.wait_procs(left, timeout=10)
    assert alive == []


def test_a_job_over_its_timeout_fails(client: Client, start_worker: StartWorker) -> None:
    """Its children end, and it is not run again."""
    client.enqueue(digits_job(job_id="slow", epochs=10_000), job_timeout=4)
    worker = start_worker()
    state = wait_for(client, "slow")
    assert (state.status, state.reason) == ("failed", "timeout")
    assert "job_timeout" in (state.message or "")
    assert_runs_the_next_job(client, worker)


@pytest.mark.slow  # tests/fuzz/test_found_cases.py has one, too
def test_a_job_that_kills_its_supervisor_three_times_is_quarantined(
    client: Client, connection: Redis, start_worker: StartWorker
) -> None:
    """The child dies with its supervisor."""
    client.enqueue(digits_job(job_id="orphan", epochs=10_000))
    worker = start_worker()
    attempts = set()
    for event in client.events("orphan", timeout=60):
        if isinstance(event, JobStarted):
            attempts.add(event.attempt)
        if isinstance(event, LoaderConfig):
            below = psutil.Process(worker.process.pid).children(recursive=True)
            trainers = [process for process in below if process.name() == "training"]
            supervisors = [process for process in below if process.ppid() == worker.process.pid]
            (supervisor,) = [process for process in supervisors if not is_standby(process)]
            supervisor.kill()
            psutil.wait_procs(trainers, timeout=10)
            assert not any(trainer.is_running() for trainer in trainers)
    assert attempts == {1, 2, 3}
    state = client.status("orphan")
    assert (state.status, state.reason) == ("failed", "quarantined")
    assert "died 3 times in a row" in (state.message or "")
    assert "orphan" in quarantine.entries(connection)
    assert_runs_the_next_job(client, worker)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("group", ["off", "on"])
def test_a_signal_stops_an_idle_worker_whose_redis_does_not_answer(
    server: RedisServer, start_worker: StartWorker, group: str
) -> None:
    """Redis's process is halted: connections stay, answers do not come."""
    worker = start_worker(environment={"PREFLIGHT_REDIS_URL": server.url, "PREFLIGHT_GROUP": group})
    with Redis.from_url(server.url) as connection:
        wait_until(lambda: bool(connection.smembers("rq:workers")))
    server.halt()
    worker.stop()


def test_no_command_of_a_worker_waits_longer_than_others(settings: Settings) -> None:
    """RQ raises the time limit of each connection that is made from then on; ours stays."""
    connection = connect(settings)
    queue = Queue(settings.queue, connection=connection, serializer=JSONSerializer)
    PreflightWorker(queue, connection, settings)
    limits = connection.connection_pool.connection_kwargs
    assert limits["socket_timeout"] == limits["socket_connect_timeout"] == SOCKET_TIMEOUT
    shorten_waits(connection)
    assert limits["socket_timeout"] == limits["socket_connect_timeout"] == GLANCE_TIMEOUT
    assert connection.ping()


@pytest.mark.slow
def test_a_nohup_worker_ignores_sighup(client: Client, connection: Redis, start_worker: StartWorker) -> None:
    worker = start_worker(prefix=["nohup"])
    wait_until(lambda: bool(connection.smembers("rq:workers")))
    worker.process.send_signal(signal.SIGHUP)
    client.enqueue(digits_job(job_id="x"))
    assert wait_for(client, "x").status == "finished"
    worker.stop()


def test_an_unreachable_redis_ends_the_worker(start_worker: StartWorker, tmp_path: Path) -> None:
    """After retries, with the URL but not its password."""
    url = f"unix://user:hunter2@{tmp_path}/nothing.sock"
    worker = start_worker(environment={"PREFLIGHT_REDIS_URL": url, "PREFLIGHT_REDIS_WAIT": "1.5"})
    assert worker.wait() == 1
    output = worker.output()
    assert "hunter2" not in output
    assert "cannot be reached" in output
    assert output.count("redis_away") == 1
    assert "Traceback" not in output


@pytest.mark.parametrize("ahead", [7200, -7200])
def test_clocks_hours_apart_are_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    """Minutes are worth a warning."""
    if "server_time_usec" not in connect(settings).info("server"):
        pytest.skip("this Redis does not say what time it is")
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead)
    with pytest.raises(ClockSkew, match=f"clock is 7[12]..? s {'ahead of' if ahead > 0 else 'behind'} that of Redis"):
        connect(settings)
    monkeypatch.setattr(time, "time", lambda: now() + ahead / 60)
    with capture_logs() as logged:
        connect(settings)
    assert [line["event"] for line in logged] == ["clock_skew"]


def test_the_lock_is_touched_when_idle_when_busy_and_without_redis(
    server: RedisServer, settings: Settings, start_worker: StartWorker
) -> None:
    worker = start_worker(environment={"PREFLIGHT_REDIS_URL": server.url})
    directory = settings.state_dir / DIRECTORY
    wait_until(lambda: any(directory.glob("[!.]*")))
    (lock,) = directory.glob("[!.]*")

    def beats() -> None:
        before = lock.stat().st_mtime_ns
        wait_until(lambda: lock.stat().st_mtime_ns > before)

    beats()
    Client(server.url).enqueue(digits_job(job_id="long", epochs=10_000))
    assert wait_for(Client(server.url), "long", "running").status == "running", worker.output()
    beats()
    server.kill()
    beats()
    beats()


def test_a_worker_waits_for_redis_to_start(server: RedisServer, start_worker: StartWorker) -> None:
    server.kill()
    worker = start_worker("--burst", environment={"PREFLIGHT_REDIS_URL": server.url})
    wait_until(lambda: "redis_away" in worker.output())
    server.start()
    assert worker.wait() == 0
    assert "worker_started" in worker.output()
