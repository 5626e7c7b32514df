"""Outcome recorder: writes the start and the outcome of a job to RQ's records; each write may be repeated."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Literal

import structlog
from redis.exceptions import RedisError

from preflight.errors import PreflightError
from worker.admission.acceptance import acceptance_ttl, renew_acceptance
from worker.admission.admit import AdmittedJob
from worker.admission.dependents import Dependents
from worker.admission.rate_limits import fill_rate_limit
from worker.admission.refusal import publish_failure, publish_mismatch
from worker.admission.repeats import enqueue_repeat
from worker.broker.fencing import Fence, Superseded
from worker.broker.requeue import RqJobRef
from worker.broker.rq_records import End, Execution, RqRecords, failed, finished, stopped
from worker.broker.shared_keys import RedisRetry
from worker.events.redis_sink import RedisSink
from worker.jobs.heartbeat import AttemptHeartbeat
from worker.jobs.outcome import Failed, Outcome, Stopped
from worker.jobs.worker_context import WorkerContext

REQUEUE_TIMEOUT: Final = 1.0
"""Seconds for which an interrupted supervisor tries to requeue its job; then the reaper does."""

Recorded = Literal["finished", "failed", "stopped", "requeued"]
"""RQ's record of the job after an attempt."""


class OutcomeRecorder:
    """Records one execution of a job. Methods raise `RedisError` and may be called again."""

    def __init__(
        self, worker: WorkerContext, place: RqJobRef, execution: Execution, job: AdmittedJob, fence: Fence,
        retry: RedisRetry,
    ) -> None:  # fmt: skip
        self._place = place
        self._retry = retry
        self._connection = retry.connection
        self._settings = settings = worker.settings
        self._execution = execution
        self._job = job
        self._fence = fence
        self._records = RqRecords(retry.connection, place.queue, worker.name, acceptance_ttl=acceptance_ttl(settings))

    def start(self) -> None:
        """Record the job as started, or restore what Redis has lost of it."""
        self._records.start_job(self._job.rq_job, self._execution, self._fence)
        renew_acceptance(self._connection, self._job.rq_job, self._job.job_id, self._settings)

    def finalize(self, outcome: Outcome, heartbeat: AttemptHeartbeat, events: RedisSink) -> Recorded:
        """Record an outcome once Redis has every event; repeat both where Redis lost its data meanwhile.

        Raises:
            Interrupted: the worker was asked to stop meanwhile.
            Superseded: a newer attempt has taken over.
        """

        def record() -> Recorded | None:
            if not events.verify_published():
                return None
            recorded = self._record(outcome)
            return recorded if recorded == "requeued" or events.verify_published() else None

        retry = replace(self._retry, on_retry=heartbeat.keep_waiting)
        while True:
            heartbeat.drain()
            recorded = retry(record, "record how the job ended")
            if recorded is not None:
                return recorded

    def publish_failure(self, error: PreflightError) -> None:
        """Publish the failure of an attempt that could not begin."""
        publish_failure(self._connection, self._settings, self._job.job_id, error, self._job.rq_job.id)

    def record_failure(self, error: PreflightError) -> Recorded:
        """Requeue a job that may be retried, else record its failure; raises `Superseded`."""
        job, options = self._job.rq_job, self._job.rq_job.options
        if error.retry and options.retries_left:
            put_back = partial(
                self._fence.requeue, self._place, front=options.retry_at_front,
                retries_left=options.retries_left - 1, pause=options.retry_pause or None,
            )  # fmt: skip
            self._records.requeue(job, self._place, self._fence, put_back)
            return "requeued"
        self._end(failed(job, f"{error.reason}: {error.message}"), self._fence)
        return "failed"

    def publish_mismatch(self, error: PreflightError) -> None:
        """Publish that the job's id belongs to another request."""
        publish_mismatch(self._connection, self._settings, self._job.job_id, self._job.rq_job.id, error)

    def record_unclaimed(self, outcome: Outcome) -> None:
        """Record the end of a job without an attempt."""
        job = self._job.rq_job
        if isinstance(outcome, Failed):
            end = failed(job, f"{outcome.error.reason}: {outcome.error.message}")
        else:
            end = finished(job, outcome.result)
        self._end(end, None)

    def requeue(self, *, front: bool = True, older: Sequence[str] = ()) -> None:
        """Put a job that did not end to the front of its queue, or its end, without spending a retry.

        `older`: RQ's ids of jobs that this worker's host took before it, which stay before it. Gives up after a second.
        """
        deadline = time.monotonic() + REQUEUE_TIMEOUT
        put_back = partial(self._fence.requeue, self._place, front=front, older=older)
        while True:
            try:
                self._records.requeue(self._job.rq_job, self._place, self._fence, put_back)
                return
            except Superseded:
                return
            except RedisError as error:
                if time.monotonic() > deadline:
                    structlog.get_logger("preflight").warning(
                        "requeue_failed", job_id=self._job.job_id, error=str(error),
                        message="the job is not requeued; the next worker reclaims it",
                    )  # fmt: skip
                    return
                time.sleep(0.1)

    def _record(self, outcome: Outcome) -> Recorded:
        if isinstance(outcome, Failed):
            return self.record_failure(outcome.error)
        job = self._job.rq_job
        if isinstance(outcome, Stopped):
            self._end(stopped(job, outcome.message), self._fence)
            return "stopped"
        self._end(finished(job, outcome.result), self._fence)
        return "finished"

    def _end(self, end: End, fence: Fence | None) -> None:
        """Record the end, and release what waits for it: the next run, dependents, jobs of the same rate limit."""
        job, queue = self._job.rq_job, self._place.queue
        if end.status == "finished" and job.options.repeats_left and self._settings.signing_key is None:
            enqueue_repeat(self._connection, queue, job, self._fence)
        self._records.end_job(job, self._job.job_id, end, self._execution, fence)
        Dependents(self._connection, queue, self._settings).release(job.id)
        if job.options.rate_limit is not None:
            fill_rate_limit(self._connection, job.options.rate_limit)
