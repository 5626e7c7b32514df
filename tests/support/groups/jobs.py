"""Jobs that several workers train together, and ways to watch them."""

import time
from collections.abc import Callable

import psutil

from preflight import Client
from preflight.wire import AnyEvent, TrainJob
from support.worker.process_tree import command_line
from support.worker.services import StartWorker, Worker, digits_job

GROUP = {"PREFLIGHT_GROUP": "on", "PREFLIGHT_CHECKPOINT_SECONDS": "1"}
"""Environment of a worker that takes part; its checkpoints are frequent."""


def group_job(job_id: str, workers: int | dict[str, int], **fields: object) -> TrainJob:
    """Return a job of some 15 s, of few and large steps, as each of them is a message to every member."""
    return digits_job(job_id=job_id, workers=workers, **{"batch_size": 1350, "epochs": 120, **fields})


def start_group(start_worker: StartWorker, count: int, **environment: str) -> list[Worker]:
    """Start workers that take part in groups."""
    return [start_worker(environment={**GROUP, **environment}) for _ in range(count)]


def until(client: Client, job_id: str, holds: Callable[[AnyEvent], bool], seconds: float = 90) -> AnyEvent:
    """Wait for the first event of a job that `holds`."""
    for event in client.events(job_id, timeout=seconds):
        if holds(event):
            return event
    raise AssertionError(f"{job_id} ended, or was silent for {seconds} s, before that")


def until_formed(client: Client, job_id: str, workers: int) -> tuple[str, ...]:
    """Wait until a job has formed a group, and saved a checkpoint in it; return its members, the leader first."""
    formed: list[tuple[str, ...]] = []

    def holds(event: AnyEvent) -> bool:
        if event.type in ("group_formed", "group_changed"):
            formed.append(event.members)
        return bool(formed) and len(formed[-1]) == workers and event.type == "checkpoint_saved"

    until(client, job_id, holds)
    return formed[-1]


def named(workers: list[Worker], name: str) -> Worker:
    """Return the worker of that name."""
    return next(worker for worker in workers if f".{worker.process.pid}." in name)


def work_horse(worker: Worker) -> psutil.Process:
    """Return the process in which a worker runs a job, or trains along with another."""
    children = psutil.Process(worker.process.pid).children()
    return next(child for child in children if command_line(child) == psutil.Process(worker.process.pid).cmdline())


def tree(worker: Worker) -> list[psutil.Process]:
    """Return a worker and all that descend from it."""
    process = psutil.Process(worker.process.pid)
    return [process, *process.children(recursive=True)]


def assert_gone(processes: list[psutil.Process], seconds: float = 20) -> None:
    """Assert that processes end by themselves: none is an orphan."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    left = [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert left == []


def await_children(worker: Worker, seconds: float = 30) -> None:
    """Wait until a worker has no child but its fork server."""
    deadline = time.monotonic() + seconds
    while True:
        children = psutil.Process(worker.process.pid).children()
        if len(children) <= 1:
            return
        assert time.monotonic() < deadline, children
        time.sleep(0.1)
