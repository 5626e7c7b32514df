"""Intake: an error that would recur with every worker takes the job out of the queue."""

import os

import pytest
from redis import Redis
from rq import Queue
from support.worker.services import digits_job

from preflight.wire import FUNCTION
from worker.admission import quarantine
from worker.config.settings import Settings
from worker.queue.work_horse import WorkHorse
from worker.queue.worker import PreflightWorker


@pytest.mark.parametrize("step", [
    "worker.queue.intake.fetch_job", "worker.queue.intake.admit", "worker.queue.intake.resolve_job_id",
    "worker.broker.rq_records.RqRecords.begin_execution", "worker.queue.work_horse.WorkHorse.run",
    "worker.jobs.supervisor.next_attempt", "worker.broker.fencing.Fence.claim",
])  # fmt: skip
def test_any_error_between_take_and_claim_quarantines(
    raw: Redis, queue: Queue, settings: Settings, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Worker and supervisor run in one process; a supervisor that raises would have its job requeued."""

    def run_in_process(horse: WorkHorse) -> int:
        try:
            horse._run()
        except KeyError:
            return os.EX_SOFTWARE << 8
        return 0

    def fail(*_: object, **__: object) -> None:
        raise KeyError(step)

    monkeypatch.setattr(WorkHorse, "run", run_in_process)
    monkeypatch.setattr(step, fail)
    queue.enqueue(FUNCTION, args=(digits_job(job_id="j").model_dump(mode="json", exclude_unset=True),), job_id="j")
    worker = PreflightWorker(queue, raw, settings)
    taken = worker._take(burst=True)
    if taken is not None:
        worker._run_job(taken)
    assert "KeyError" in quarantine.entries(raw)["j"].reason
    assert raw.llen(queue.key) == raw.llen(queue.intermediate_queue_key) == 0
    assert raw.zcard(queue.started_job_registry.key) == 0
