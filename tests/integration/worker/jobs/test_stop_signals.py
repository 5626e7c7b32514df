"""A stop signal that reaches every process means what it means to the worker alone; to one other process, nothing lost.

systemd (KillMode=control-group) and Heroku signal every process; somebody's `kill` reaches one.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import psutil
import pytest
from redis import Redis
from rq import Queue
from support.groups.jobs import GROUP, group_job, start_group, tree
from support.worker.process_tree import command_line
from support.worker.services import RunWorker, StartWorker, Worker, digits_job, wait_for, wait_until
from support.worker.survival import assert_nothing_duplicated, long_job, until_checkpoint

from preflight import Client
from preflight.container.resources import detect
from preflight.wire import CheckpointSaved, JobResumed, JobWarning

ENVIRONMENTS = {"fork server": {"PREFLIGHT_STANDBY": "auto"}, "fresh interpreters": {"PREFLIGHT_STANDBY": "off"}}
PLANS: dict[str, dict[str, object]] = {
    "one process": {"threads": 1},
    "loader workers": {"threads": 1, "loader_workers": 2},
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("signals_heard")


def send(number: signal.Signals, processes: Sequence[psutil.Process]) -> None:
    """Signal every process that has not ended."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def training(worker: Worker) -> psutil.Process:
    """Return the training process of a worker: the first one, where the plan has several."""
    found = [process for process in tree(worker) if process.name() == "training"]
    return min(found, key=lambda process: process.create_time())


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, str | None]:
    """Weights of undisturbed jobs, by plan."""
    return {}


@pytest.fixture
def weights(client: Client, run_worker: RunWorker, undisturbed: dict[str, str | None]) -> Callable[[str], str | None]:
    """Return the sha256 of the weights to which an undisturbed `long_job` comes under one of `PLANS`."""

    def of(plan: str) -> str | None:
        if plan not in undisturbed:
            client.enqueue(long_job(f"undisturbed {plan}".replace(" ", "-"), plan=PLANS[plan]))
            run_worker()
            undisturbed[plan] = client.status(f"undisturbed {plan}".replace(" ", "-")).model_sha256
        return undisturbed[plan]

    return of


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "server", "plan", "order"),
    [
        (signal.SIGTERM, "fork server", "one process", "parents first"),
        (signal.SIGINT, "fresh interpreters", "loader workers", "children first"),
        (signal.SIGHUP, "fork server", "loader workers", "children first"),
    ],
)
def test_every_process_is_asked_to_stop(
    number: signal.Signals, server: str, plan: str, order: str, client: Client, connection: Redis, queue: Queue,
    start_worker: StartWorker, weights: Callable[[str], str | None],
) -> None:  # fmt: skip
    """A checkpoint at the last step, the job at the front of its queue with all its retries, exit code 0."""
    expected = weights(plan)
    client.enqueue(long_job("job", plan=PLANS[plan]))
    worker = start_worker(environment=ENVIRONMENTS[server])
    until_checkpoint(client, "job", 1)
    client.enqueue(digits_job(job_id="behind", epochs=1))
    processes = tree(worker)
    send(number, processes if order == "parents first" else processes[::-1])
    assert worker.wait(30) == 0, worker.output()
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    assert queue.get_job_ids() == ["job", "behind"]
    assert connection.hget("rq:job:job", "retries_left") == "2"
    stopped = list(client.events("job", timeout=1))
    assert [event.type for event in stopped][-2:] == ["checkpoint_saved", "job_interrupted"]
    assert start_worker("--burst", environment=ENVIRONMENTS[server]).wait() == 0
    state = client.status("job")
    assert (state.status, state.attempt, state.model_sha256) == ("finished", 2, expected)
    resumed = next(event for event in assert_nothing_duplicated(client, "job") if isinstance(event, JobResumed))
    saved = next(event for event in reversed(stopped) if isinstance(event, CheckpointSaved))
    assert (resumed.epochs_done, resumed.steps_done) == (saved.epochs_done, saved.steps_done)


@pytest.mark.slow
def test_a_training_process_that_is_stopped_by_itself_is_resumed(
    client: Client, start_worker: StartWorker, weights: Callable[[str], str | None]
) -> None:
    """It saves at its last step, and the same attempt goes on in a new process; a warning says why."""
    expected = weights("loader workers")
    client.enqueue(long_job("job", plan=PLANS["loader workers"]))
    worker = start_worker()
    until_checkpoint(client, "job", 1)
    training(worker).send_signal(signal.SIGTERM)
    state = wait_for(client, "job")
    assert (state.status, state.attempt, state.model_sha256) == ("finished", 1, expected)
    events = assert_nothing_duplicated(client, "job")
    (warning,) = [event.message for event in events if isinstance(event, JobWarning)]
    assert warning.endswith("by a signal; resuming from the last checkpoint")
    at = next(place for place, event in enumerate(events) if isinstance(event, JobResumed))
    resumed, saved = events[at], [event for event in events[:at] if isinstance(event, CheckpointSaved)][-1]
    assert isinstance(resumed, JobResumed)
    assert (resumed.epochs_done, resumed.steps_done) == (saved.epochs_done, saved.steps_done)
    worker.stop()


@pytest.mark.slow
def test_helpers_ignore_a_stop_signal_of_their_own(
    client: Client, start_worker: StartWorker, weights: Callable[[str], str | None]
) -> None:
    """The fork server, a loader's worker: the job goes on as if nothing had been."""
    expected = weights("loader workers")
    client.enqueue(long_job("job", plan=PLANS["loader workers"]))
    worker = start_worker()
    until_checkpoint(client, "job", 1)
    lead = training(worker)
    server = psutil.Process(lead.ppid())
    helpers = [server, *lead.children(recursive=True)]
    assert server.ppid() == worker.process.pid
    assert len(helpers) > 1
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        send(number, helpers)
    state = wait_for(client, "job")
    assert (state.status, state.attempt, state.model_sha256) == ("finished", 1, expected)
    events = assert_nothing_duplicated(client, "job")
    assert not {"job_resumed", "warning"} & {event.type for event in events}
    assert server.is_running()
    worker.stop()


@pytest.mark.slow
def test_a_supervisor_that_is_stopped_by_itself_requeues_its_job(
    client: Client, start_worker: StartWorker, weights: Callable[[str], str | None]
) -> None:
    """With a checkpoint at the last step; its worker takes the job again."""
    expected = weights("one process")
    client.enqueue(long_job("job", plan=PLANS["one process"]))
    worker = start_worker()
    until_checkpoint(client, "job", 1)
    supervisor = next(child for child in tree(worker)[0].children() if command_line(child) == tree(worker)[0].cmdline())
    supervisor.send_signal(signal.SIGTERM)
    state = wait_for(client, "job")
    assert (state.status, state.attempt, state.model_sha256) == ("finished", 2, expected)
    types = [event.type for event in assert_nothing_duplicated(client, "job")]
    assert types[types.index("job_interrupted") - 1] == "checkpoint_saved"
    worker.stop()


@pytest.mark.slow
def test_every_process_of_a_calibration_is_asked_to_stop(
    client: Client, queue: Queue, start_worker: StartWorker
) -> None:
    """The job waits at the front, and no plan counts as one that crashed: the next worker finds a plan and finishes."""
    client.enqueue(digits_job(job_id="job", epochs=1, calibrate=True, force_calibration=True))
    worker = start_worker(environment={"PREFLIGHT_CALIBRATION_SECONDS": "60"})
    wait_until(lambda: "calibration" in [process.name() for process in tree(worker)], seconds=60)
    wait_until(lambda: "calibration_trial" in [event.type for event in client.events("job", timeout=0.1)], seconds=60)
    processes = tree(worker)
    send(signal.SIGTERM, processes[::-1])
    assert worker.wait(30) == 0, worker.output()
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    assert queue.get_job_ids() == ["job"]
    assert "calibration_trial_failed" not in worker.output()
    assert start_worker("--burst").wait(120) == 0
    assert client.status("job").status == "finished"


@pytest.fixture
def two(start_worker: StartWorker) -> Iterator[Worker]:
    if detect().cores < 2:
        pytest.skip("two processes need two cores")
    yield start_worker("--processes", "2", environment=GROUP)


@pytest.mark.slow
def test_every_one_of_several_workers_is_asked_to_stop(
    client: Client, queue: Queue, two: Worker, start_worker: StartWorker
) -> None:
    """Each gets the signal twice, of which one is its parent's: this is no second request, which would kill its job."""
    for job_id in ("one", "two"):
        client.enqueue(long_job(job_id, plan={"threads": 1}))
    for job_id in ("one", "two"):
        until_checkpoint(client, job_id, 1)
    processes = tree(two)
    send(signal.SIGTERM, processes)
    assert two.wait(30) == 0, two.output()
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    assert sorted(queue.get_job_ids()) == ["one", "two"]
    for job_id in ("one", "two"):
        types = [event.type for event in client.events(job_id, timeout=1)]
        assert types[-2:] == ["checkpoint_saved", "job_interrupted"]
    assert start_worker("--burst").wait() == 0
    assert {client.status(job_id).status for job_id in ("one", "two")} == {"finished"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_second_request_to_every_process_kills(
    processes: str, client: Client, queue: Queue, start_worker: StartWorker
) -> None:
    """Exit code 1, no process left, the job requeued."""
    if detect().cores < int(processes):
        pytest.skip(f"{processes} processes need as many cores")
    client.enqueue(long_job("job", plan={"threads": 1}))
    worker = start_worker("--processes", processes)
    until_checkpoint(client, "job", 1)
    everyone = tree(worker)
    stuck = training(worker)
    stuck.suspend()  # so that the first request cannot be heeded
    for _ in range(2):
        send(signal.SIGTERM, everyone)
        time.sleep(0.5)
    assert worker.wait(30) == 1, worker.output()
    assert psutil.wait_procs(everyone, timeout=10)[1] == []
    assert queue.get_job_ids() == ["job"]


@pytest.mark.slow
def test_a_request_that_a_process_manager_repeats_is_one(client: Client, start_worker: StartWorker) -> None:
    """Heroku signals the manager and the worker, and the manager forwards its own; systemd may add SIGHUP."""
    client.enqueue(long_job("job"))
    worker = start_worker()
    until_checkpoint(client, "job", 1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
        worker.process.send_signal(number)
        time.sleep(0.01)
    assert worker.wait(30) == 0, worker.output()
    types = [event.type for event in client.events("job", timeout=1)]
    assert types[-2:] == ["checkpoint_saved", "job_interrupted"]


@pytest.mark.slow
def test_every_process_of_a_group_is_asked_to_stop(client: Client, queue: Queue, start_worker: StartWorker) -> None:
    """The leader saves at its last step, although its members are asked in the same moment."""
    workers = start_group(start_worker, 2, PREFLIGHT_CHECKPOINT_SECONDS="3600")
    client.enqueue(group_job("job", 2, epochs=2000, deterministic=True))
    until_trained(client, "job")
    processes = [process for worker in workers for process in tree(worker)]
    send(signal.SIGTERM, processes[::-1])
    for worker in workers:
        assert worker.wait(30) == 0, worker.output()
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    events = [event for event in client.events("job", timeout=1) if event.attempt == 1]
    types = [event.type for event in events]
    assert types[-2:] == ["checkpoint_saved", "job_interrupted"]
    assert queue.get_job_ids() == ["job"]
    start_group(start_worker, 2)
    resumed = until_resumed(client, "job")
    saved = next(event for event in reversed(events) if isinstance(event, CheckpointSaved))
    assert (resumed.epochs_done, resumed.steps_done) == (saved.epochs_done, saved.steps_done)


def until_trained(client: Client, job_id: str) -> None:
    """Wait until a group has made steps together."""
    formed = False
    for event in client.events(job_id, timeout=90):
        formed = formed or event.type == "group_formed"
        if event.type == "progress" and formed:
            return
    raise AssertionError(f"{job_id} was not trained by a group")


def until_resumed(client: Client, job_id: str) -> JobResumed:
    """Wait until another attempt resumes from a checkpoint."""
    return next(event for event in client.events(job_id, timeout=90) if isinstance(event, JobResumed))
