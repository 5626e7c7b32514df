"""The run of one job: a work-horse, its heartbeats, and what follows its death."""

import secrets
import signal
import time
from collections.abc import Callable
from typing import Literal

import structlog

from preflight.errors import TimedOut
from preflight.wire import build_events
from worker.admission.admit import AdmittedJob
from worker.admission.refusal import publish_failure
from worker.broker.requeue import RqJobRef, read_lease, reclaim
from worker.broker.rq_records import Execution, RqRecords, failed
from worker.broker.shared_keys import RedisRetry
from worker.jobs.supervisor import Supervisor
from worker.jobs.worker_context import WorkerContext
from worker.queue.standby import Standby
from worker.queue.work_horse import WorkHorse, describe_exit
from worker.state.control import Interrupted


class JobRunner:
    """Runs the jobs of one worker, one after the other."""

    def __init__(
        self, worker: WorkerContext, standby: Standby, records: RqRecords, retry: RedisRetry,
        heartbeat: Callable[[Callable[[], None]], bool],
    ) -> None:  # fmt: skip
        """Run jobs of the queue of `worker`.

        `heartbeat` sends that of the worker and calls what it is given; it returns whether Redis took both.
        """
        self._worker = worker
        self._standby = standby
        self._records = records
        self._retry = retry
        self._heartbeat = heartbeat
        self._horse: WorkHorse | None = None
        self._log = structlog.get_logger("preflight")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the work-horse, if one runs."""
        if self._horse is not None:
            self._horse.signal(number)

    def run(self, job: AdmittedJob) -> None:
        """Run the job in a work-horse, and requeue it when that dies."""
        execution = Execution(secrets.token_hex(16), time.time())
        self._retry(lambda: self._records.begin_execution(job.rq_job, execution), "record the execution")
        ref = RqJobRef(self._worker.queue, job.rq_job.id, execution.id)
        status = "not begun" if self._worker.stop() else self._run_work_horse(job, execution)
        if status == "timeout":
            self._fail_late(job, execution)
        elif status == "not begun":
            self._requeue(job, ref)
        elif status != 0:
            self._log.error(
                "supervisor_died", job_id=job.job_id, message=f"the job's supervisor died: {describe_exit(status)}"
            )
            self._requeue(job, ref)

    def _run_work_horse(self, job: AdmittedJob, execution: Execution) -> int | Literal["timeout", "not begun"]:
        def supervise() -> None:
            Supervisor(self._worker, execution, job, self._standby.server).run()

        self._standby.prepare()
        build_events()  # while torch is imported, once for all jobs
        self._horse = WorkHorse(
            job.job_id, supervise, self._worker.stop,
            lambda: self._heartbeat(lambda: self._records.renew_execution(job.rq_job, job.job_id, execution)),
            self._standby.make_room, timeout=job.rq_job.timeout,
        )  # fmt: skip
        try:
            return self._horse.run()
        finally:
            self._horse = None

    def _fail_late(self, admitted: AdmittedJob, execution: Execution) -> None:
        """Fail a job whose work-horse ignored its timeout and was killed."""
        job = admitted.rq_job
        late = TimedOut(f"the job ran longer than {job.timeout} s and did not stop; its supervisor was killed")
        self._retry(
            lambda: publish_failure(self._worker.connection, self._worker.settings, admitted.job_id, late, job.id),
            "publish the failure",
        )
        end = failed(job, f"{late.reason}: {late.message}")
        self._retry(lambda: self._records.end_job(job, admitted.job_id, end, execution, None), "record the failure")

    def _requeue(self, job: AdmittedJob, ref: RqJobRef) -> None:
        """Put a job that no longer runs at the front of its queue, unless another worker's attempt holds its lease."""
        owner = f"{self._worker.name}/{ref.execution} "

        def put_back() -> None:
            lease = read_lease(self._worker.connection, job.job_id)
            if not lease or lease.startswith(owner):
                reclaim(self._worker.connection, job.job_id, ref, lease=lease)

        try:
            self._retry(put_back, "requeue the job")
        except Interrupted:
            self._log.warning(
                "requeue_failed", job_id=job.job_id, message="the job is not requeued; the next worker reclaims it"
            )
