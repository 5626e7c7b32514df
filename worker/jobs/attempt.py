"""Attempt: one execution of a job under its fence, with its files, event sinks and heartbeat."""

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from pydantic import JsonValue

from preflight.errors import ArtifactError, GroupShort
from preflight.redis.retry import retry_until_available
from training.process.fork_server.client import ForkServer
from worker.admission.admit import AdmittedJob
from worker.broker.fencing import Fence
from worker.events.log_sink import LogSink
from worker.events.redis_sink import RedisSink
from worker.jobs.context import JobContext
from worker.jobs.heartbeat import AttemptHeartbeat, ExtrasControl
from worker.jobs.outcome import Finished, Outcome, published_failure, stored_result
from worker.jobs.outcome_recorder import OutcomeRecorder
from worker.jobs.pipeline import outcome_of, resume_pipeline
from worker.jobs.stages.dataset_pin import RedisDatasetPin
from worker.jobs.stages.extras import add_extras, inherited_extras
from worker.jobs.stages.pending_extras import Extras, ExtrasFile, pending_attempts
from worker.jobs.stages.plan_store import RedisPlanStore
from worker.jobs.worker_context import WorkerContext
from worker.state.control import Interrupted
from worker.state.packing.share import ProcessorShare
from worker.state.paths import JobPaths, open_paths
from worker.state.spool import Spool

FLUSH_TIMEOUT: Final = 1.0
"""Seconds for which an interrupted job waits for Redis to take its events; the rest stays in the spool."""
REFUSED: Final = "refused_options"
"""Entry of RQ's `job.meta` with the options of the job that this worker does not support."""


class Attempt:
    """An attempt that `fence` has claimed. Use as a context: leaving it closes its files."""

    def __init__(
        self, worker: WorkerContext, job: AdmittedJob, fence: Fence, recorder: OutcomeRecorder,
        refused: Mapping[str, str], server: ForkServer | None,
    ) -> None:  # fmt: skip
        """Open the files of the attempt.

        `refused` are RQ's options of the job that this worker does not support; `server` forks the job's children.

        Raises:
            PreflightError: a file cannot be opened.
        """
        settings, job_id, rq_job, attempt = worker.settings, job.job_id, job.rq_job, fence.attempt
        self._worker = worker
        self._fence = fence
        self._job = job
        with ExitStack() as stack:
            paths = stack.enter_context(closing(open_paths(settings, job_id, attempt)))
            spool = stack.enter_context(closing(_open_spool(paths, job_id, attempt)))
            meta: dict[str, JsonValue] = {**rq_job.meta, **({REFUSED: [*refused]} if refused else {})}
            self.events = RedisSink(fence, spool, kept=settings.events_kept, meta=meta)
            self.heartbeat = AttemptHeartbeat(
                fence, self.events, worker.stop, recorder.start, timeout=rq_job.timeout, shares=settings.shares
            )
            more = [each for one in worker.features for each in one.sinks(settings, job.request, job_id, attempt)]
            log = LogSink(job_id, attempt, enqueued_at=rq_job.enqueued_at)
            self._context = JobContext(
                settings=settings, worker=worker.name, job_id=job_id, attempt=attempt, paths=paths,
                enqueued_at=rq_job.enqueued_at,
                sinks=(log, self.events, *more), features=worker.features, control=self.heartbeat,
                warnings=tuple(refused.values()), server=server, processors=_share(worker, server),
                plans=RedisPlanStore(worker.connection, job_id, settings.state_ttl, self.heartbeat.heartbeat),
                pin=RedisDatasetPin(
                    paths.job, worker.connection, job_id, settings.state_ttl, self.heartbeat.heartbeat
                ),
                fence=fence,
                extras=ExtrasFile(paths.attempt, rq_id=rq_job.id, owner=fence.owner, request=job.request.digest()),
            )  # fmt: skip
            self._files = stack.pop_all()

    def run(self) -> Outcome:
        """Return the outcome of an earlier attempt, else of this one.

        Raises:
            Interrupted: the worker was asked to stop; the checkpoint is on disk.
            Superseded: a newer attempt has taken over.
            GroupShort: the job demands more workers than are there.
        """
        context = self._context
        try:
            return outcome_of(context, self._earlier_outcome) or resume_pipeline(context, self._job.request)
        except Interrupted:
            message = f"worker {context.worker} was asked to stop; the job is at the front of its queue"
            context.emit("job_interrupted", {"message": message})
            raise

    def add_extras(self, extras: Extras) -> None:
        """Add what follows the recorded result and could not be left to another process; raises as `run`."""
        control = ExtrasControl(self.events, self._worker.stop)
        add_extras(replace(self._context, control=control), extras)
        control.drain()

    def clear(self) -> None:
        """Remove the files that nobody needs once the job is finished, unless extras are left that do."""
        if not any(pending_attempts(self._context.paths.job)):
            self._context.paths.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._files:
            if isinstance(error, Interrupted | GroupShort):
                self.events.flush(FLUSH_TIMEOUT)

    def _earlier_outcome(self) -> Outcome | None:
        """Return the outcome of an attempt that died before its end was recorded with RQ.

        Its last events may be in the spool only, and are published first.
        """
        if self._fence.attempt == 1:
            return None
        self.heartbeat.drain()
        check = self.heartbeat.check
        result = retry_until_available(
            lambda: stored_result(self._worker.connection, self._job.job_id),
            "read the result of earlier attempts",
            check,
        )
        if result is not None:
            extras = inherited_extras(self._context, result)
            saved = extras is None or self._context.extras.save(extras)
            return Finished(result, None if saved else extras)
        return published_failure(
            retry_until_available(self._fence.failure, "read the failure of earlier attempts", check)
        )


def _share(worker: WorkerContext, server: ForkServer | None) -> ProcessorShare:
    """Return the share of the job that `worker` runs; `server` forks its children."""
    share = ProcessorShare() if worker.arbiter is None else worker.arbiter.share
    share.watch(None if server is None else server.pid)
    return share


def _open_spool(paths: JobPaths, job_id: str, attempt: int) -> Spool:
    try:
        return Spool(paths.job, job_id, attempt)
    except OSError as error:
        raise ArtifactError(
            f"{paths.attempt} cannot be written ({error.strerror}); make room or set PREFLIGHT_STATE_DIR"
        ) from error
