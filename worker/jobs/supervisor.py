"""Supervisor: the process that runs one job. It claims an attempt, runs the pipeline and records the outcome.

It is a fork of the worker without torch. Writes are retried and every step is idempotent: the result in Redis and the
manifest on disk show what is done.
"""

import time
from functools import partial
from typing import Final

import structlog
from redis.exceptions import RedisError

from preflight.errors import GroupShort, InvalidConfig, PreflightError
from preflight.queue.payload import PoisonMessage
from preflight.redis.connection import is_replicated
from preflight.redis.retry import PERMANENT_ERRORS, is_wrong_type, retry_until_available
from training.process.fork_server.client import ForkServer
from worker.admission.admit import AdmittedJob
from worker.admission.refusal import quarantine_job, refused_options
from worker.broker.fencing import MAX_DEATHS, Fence, Superseded
from worker.broker.requeue import RqJobRef, defer, reclaim
from worker.broker.rq_records import Execution
from worker.broker.shared_keys import RedisRetry, shared_keys
from worker.jobs.attempt import Attempt
from worker.jobs.outcome import Failed, Finished, StoredResultUnreadable, stored_result
from worker.jobs.outcome_recorder import OutcomeRecorder, Recorded
from worker.jobs.worker_context import WorkerContext
from worker.state.control import Interrupted
from worker.state.paths import next_attempt

BUSY_PAUSE: Final = 1.0
"""Seconds before a job that runs elsewhere is deferred to the end of its queue."""


class Supervisor:
    """Runs one job in this process."""

    def __init__(
        self, worker: WorkerContext, execution: Execution, job: AdmittedJob, server: ForkServer | None
    ) -> None:
        """Run `job`, which `worker` took from its queue, under `execution`, RQ's record of it.

        `server` forks its children; None: they are fresh interpreters.
        """
        self._worker = worker
        self._job = job
        self._server = server
        self._place = RqJobRef(worker.queue, job.rq_job.id, execution.id)
        self._fence = Fence(
            worker.connection, job.job_id, f"{worker.name}/{execution.id}", ttl=worker.settings.state_ttl,
            request=job.request.digest(),
        )  # fmt: skip
        self._retry = RedisRetry(worker.connection, shared_keys(worker.queue, worker.name), self._keep_waiting)
        self._recorder = OutcomeRecorder(worker, self._place, execution, job, self._fence, self._retry)
        self._log = structlog.get_logger("preflight").bind(job_id=job.job_id)

    def run(self) -> None:
        """Claim the job, run it and record its end.

        An error before an attempt is claimed would occur in every worker: the job is quarantined. After that the
        attempt has died, and deaths are counted.

        Raises:
            Interrupted: asked to stop before the job was claimed, or while Redis was away.
            redis.exceptions.RedisError: Redis refuses this worker.
        """
        structlog.contextvars.bind_contextvars(job_id=self._job.job_id)  # this process runs one job
        try:
            self._claim_and_run()
        except (Interrupted, *PERMANENT_ERRORS):
            raise
        except RedisError as error:
            if not is_wrong_type(error):
                raise
            self._quarantine(f"a key of the job in Redis has a wrong type or value ({error})")
        except StoredResultUnreadable as error:
            self._quarantine(error.message)
        except Exception as error:
            if self._fence.attempt:
                raise
            self._log.exception("job_quarantined", message="the job could not be started and is quarantined")
            self._quarantine(f"it could not be started ({type(error).__name__}: {error})")

    def _claim_and_run(self) -> None:
        allowed = max(MAX_DEATHS, self._job.rq_job.options.retries_left)
        least = next_attempt(self._worker.settings, self._job.job_id)
        claim = self._retry(
            lambda: self._fence.claim(self._job.rq_job.id, least=least, max_deaths=allowed), "claim the job"
        )
        if claim.status in ("done", "busy", "poisoned", "looping"):  # an attempt does so with its first event
            self._retry(self._fence.set_alias, "record the job's id")
        match claim.status:
            case "claimed":
                self._run_claimed()
            case "done":
                self._record_stored_result()
            case "busy":
                self._defer()
            case "poisoned":
                self._quarantine(
                    f"its worker died {claim.number} times in a row without progress, at most {allowed} are allowed"
                )
            case "looping":
                self._quarantine(f"it is finished, but its end could not be recorded in {claim.number} tries")
            case "mismatch":
                self._refuse_mismatch()
            case "over":  # the job has ended meanwhile
                self._retry(
                    lambda: reclaim(self._worker.connection, self._job.job_id, self._place, lease=""),
                    "clear the job away",
                )

    def _run_claimed(self) -> None:
        try:
            self._retry(self._recorder.start, "record the job as started")
            self._run_attempt()
        except Interrupted:
            arbiter = self._worker.arbiter
            self._recorder.requeue(older=() if arbiter is None else arbiter.share.older)
        except GroupShort:
            self._recorder.requeue(front=False)
        except Superseded:
            self._log.warning("superseded", attempt=self._fence.attempt, message="a newer attempt has taken over")

    def _run_attempt(self) -> None:
        """Run the attempt and record its outcome."""
        refused = self._retry(
            lambda: refused_options(
                self._worker.connection, self._place.queue, self._job.rq_job, self._worker.settings
            ),
            "read the job's dependents",
        )
        try:
            attempt = Attempt(self._worker, self._job, self._fence, self._recorder, refused, self._server)
        except PreflightError as error:
            self._retry(partial(self._recorder.publish_failure, error), "publish the failure")
            self._release(self._retry(partial(self._recorder.record_failure, error), "record the failure"))
            return
        with attempt:
            outcome = attempt.run()
            self._release(self._recorder.finalize(outcome, attempt.heartbeat, attempt.events))
            if isinstance(outcome, Finished) and outcome.extras is not None:
                attempt.add_extras(outcome.extras)
        # After a failover that lost the end, the next attempt publishes the spool; else the janitor removes it.
        if isinstance(outcome, Finished) and is_replicated(self._worker.connection):
            attempt.clear()

    def _release(self, recorded: Recorded) -> None:
        if recorded != "requeued":
            self._retry(lambda: self._fence.release(failed=recorded == "failed"), "end the attempt")

    def _record_stored_result(self) -> None:
        """Record the end of a job that an earlier attempt finished without recording it."""
        result = self._retry(lambda: stored_result(self._worker.connection, self._job.job_id), "read the stored result")
        if result is None:  # it expired between claim and read
            self._claim_and_run()
            return
        self._retry(partial(self._recorder.record_unclaimed, Finished(result)), "record the job as finished")
        self._retry(self._fence.end_round, "end the round")

    def _refuse_mismatch(self) -> None:
        """Fail a job whose id belongs to another request, without touching the records of that one."""
        error = InvalidConfig(
            f"job_id is {self._job.job_id!r}, which belongs to another request; enqueue this one under another id",
            field="job_id",
        )
        self._retry(partial(self._recorder.publish_mismatch, error), "publish the failure")
        self._retry(partial(self._recorder.record_unclaimed, Failed(error)), "record the failure")

    def _quarantine(self, why: str) -> None:
        poison = PoisonMessage(why, self._job.rq_job.id)
        action = partial(
            quarantine_job, self._worker.connection, self._place.queue, self._worker.settings, poison, self._job.job_id
        )
        self._retry(action, "put the job into quarantine")

    def _defer(self) -> None:
        """Defer to the attempt that runs; the queue keeps the job in case it dies."""
        deadline = time.monotonic() + BUSY_PAUSE
        while time.monotonic() < deadline and not self._worker.stop():
            time.sleep(0.05)
        retry_until_available(lambda: defer(self._worker.connection, self._place), "defer the job", lambda: None)

    def _keep_waiting(self) -> None:
        """Renew the lease and check for a stop signal, between two tries."""
        self._worker.stop.check()
        if self._fence.attempt:
            try:
                self._fence.renew_lease(progressed=False)
            except RedisError:
                return
