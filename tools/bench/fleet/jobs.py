"""Jobs through a fleet: each ends once, how they spread over the workers, and how long they wait at a steady rate."""

import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter
from rq import Queue

from preflight.redis import keys
from preflight.redis.replies import text
from preflight.wire import FUNCTION, JOB_TYPE
from tools.bench.fleet.fleet import Fleet
from tools.bench.record import judged, start

JOBS: Final = 10_000
TRAININGS: Final = 20
"""Trainings among them; the others are refused. One takes some seconds of a core, most of them to import torch."""
RATE: Final = 50
"""Jobs a second while waits are measured."""
P99_BOUND: Final = 0.5
END_TIMEOUT: Final = 240.0
REFUSED: Final = {"type": JOB_TYPE, "dataset": "digits", "model": "cnn", "epochs": 0}
ONE_STEP: Final = {
    "type": JOB_TYPE, "dataset": "digits", "model": "cnn", "epochs": 1, "max_steps": 1, "batch_size": 32,
    "calibrate": False, "plan": {"threads": 1},
}  # fmt: skip
EVENTS = TypeAdapter(list[tuple[bytes, dict[bytes, bytes]]])


def measure_jobs(fleet: Fleet, command: str, jobs: int) -> None:
    """Print and write how a pile of jobs is worked off."""
    every = max(1, jobs // TRAININGS)
    began = time.monotonic()
    names = enqueue(fleet.queue, "pile", [ONE_STEP if number % every == 0 else REFUSED for number in range(jobs)])
    enqueued = time.monotonic() - began
    seconds = wait_for_end(fleet, names) + enqueued
    ends = [end_of(fleet, name) for name in names]
    twice = sum(end != 1 for end, _, _ in ends)
    trained = sum(status == "finished" for _, status, _ in ends)
    wanted = len(range(0, jobs, every))
    shares = sorted(Counter(worker for _, _, worker in ends).values())
    idle = fleet.real - len(shares)
    shares = [0] * idle + shares
    record = start("fleet-jobs", command)
    record.head(f"{jobs:,} jobs through {fleet.real} real workers, {fleet.simulated} simulated ones idle", "", "")
    record.row("jobs that ended not once", f"{twice}", judged(twice == 0))
    record.row("trainings of one step that finished", f"{trained} of {wanted}", judged(trained == wanted))
    record.row("jobs a worker: least, median, most", f"{shares[0]}, {statistics.median(shares):g}, {shares[-1]}", "")
    record.row("seconds from the first enqueue to the last end", f"{seconds:.1f}", "")
    record.write()


def measure_latency(fleet: Fleet, command: str, seconds: float) -> None:
    """Print and write how long refused jobs wait at a steady rate."""
    names, late = list[str](), 0.0
    first = time.monotonic()
    for number in range(round(RATE * seconds)):
        pause = first + number / RATE - time.monotonic()
        late = max(late, -pause)
        time.sleep(max(0.0, pause))
        names += enqueue(fleet.queue, f"steady-{number}", [REFUSED])
    wait_for_end(fleet, names)
    waits = sorted(wait_of(fleet, name) for name in names)
    p50, p95, p99 = (waits[int(share * len(waits))] for share in (0.5, 0.95, 0.99))
    record = start("fleet-latency", command)
    record.head(f"{len(waits):,} refused jobs, {RATE} a second, {fleet.total:,} workers", "seconds", "bound", "")
    for name, wait in (("median", p50), ("95 %", p95)):
        record.row(f"enqueued to begun, {name}", f"{wait:.4f}", "", "")
    record.row("enqueued to begun, 99 %", f"{p99:.4f}", f"{P99_BOUND:g}", judged(p99 <= P99_BOUND))
    record.row("longest", f"{waits[-1]:.4f}", "", "")
    record.note(
        f"The producer was late by {late:.3f} s at most. Begun: its refusal is written, because two cores train no "
        f"{RATE} jobs a second."
    )
    record.write()


def enqueue(queue: Queue, prefix: str, jobs: Sequence[dict[str, object]]) -> list[str]:
    """Enqueue jobs as plain RQ does; returns their ids."""
    names = [f"{prefix}-{number}" for number in range(len(jobs))]
    for first in range(0, len(jobs), 500):
        pipe = queue.connection.pipeline()
        page = zip(names[first : first + 500], jobs[first : first + 500], strict=True)
        prepared = [Queue.prepare_data(FUNCTION, args=(job,), job_id=name, timeout=3600) for name, job in page]
        queue.enqueue_many(prepared, pipeline=pipe)
        pipe.execute()
    return names


def wait_for_end(fleet: Fleet, names: Sequence[str]) -> float:
    """Wait until all jobs have ended; returns the seconds."""
    began = time.monotonic()
    queue = fleet.queue
    open_ = (queue.key, queue.intermediate_queue_key, queue.started_job_registry.key)
    while fleet.server.redis.exists(*open_):
        if time.monotonic() - began > END_TIMEOUT:
            raise SystemExit(f"{len(queue)} of {len(names)} jobs wait still after {END_TIMEOUT:g} s")
        time.sleep(0.1)
    return time.monotonic() - began


def end_of(fleet: Fleet, name: str) -> tuple[int, str, str]:
    """Return how often a job ended, its status in RQ, and the worker that ended it."""
    results = EVENTS.validate_python(fleet.server.redis.xrange(keys.rq_results(name)))
    status = text(fleet.server.redis.hget(keys.rq_job(name), "status") or b"")
    return len(results), status, text(results[0][1][b"worker_name"]) if results else ""


def wait_of(fleet: Fleet, name: str) -> float:
    """Return the seconds from the enqueue of a refused job to its refusal."""
    (event,) = EVENTS.validate_python(fleet.server.redis.xrange(keys.lifecycle(name)))
    enqueued = fleet.queue.fetch_job(name)
    if enqueued is None or enqueued.enqueued_at is None:
        raise SystemExit(f"job {name} is gone; raise the time for which failed jobs are kept")
    return float(json.loads(event[1][b"ts"])) - enqueued.enqueued_at.timestamp()
