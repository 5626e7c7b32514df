"""Late extras: finish the extras of a job, under the fence of the attempt that has ended."""

from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Final, TypeVar

import structlog
from pydantic import JsonValue

from preflight.container.resources import MemoryUse, detect
from preflight.errors import ArtifactError
from preflight.files.locks import exclusive
from preflight.queue.untrusted_job import MAX_FIELD_BYTES, parse_meta
from preflight.redis import keys
from preflight.redis.retry import retry_until_available
from preflight.redis.untrusted.reads import read_fields
from training.process.fork_server.client import ForkServer
from training.process.priority import use_idle_priority
from worker.broker.fencing import Fence, Superseded
from worker.events.log_sink import LogSink
from worker.events.redis_sink import RedisSink
from worker.jobs.context import JobContext
from worker.jobs.heartbeat import ExtrasControl
from worker.jobs.outcome import stored_result
from worker.jobs.stages.extras import add_extras, without_told
from worker.jobs.stages.pending_extras import FILE_NAME, ExtrasFile, PendingExtras, pending_attempts, read_pending
from worker.jobs.worker_context import WorkerContext
from worker.queue.maintenance.extras_room import must_give_way
from worker.state.control import Interrupted
from worker.state.paths import JOBS, open_paths
from worker.state.spool import Spool

LOCK: Final = "extras.lock"
"""Lock file next to the file of the extras, held while a process does them."""
FLUSH_TIMEOUT: Final = 1.0
"""Seconds for which interrupted extras wait for Redis to take their events; the rest stays in the spool."""
T = TypeVar("T")

IDLE_PATIENCE: Final = 10.0
"""Factor of time limits at idle priority: a training may leave little of the processor."""


class _InProgress(Exception):
    """Another process does these extras."""


class LateExtras:
    """The pending extras of one job on this disk."""

    def __init__(self, worker: WorkerContext, job_id: str, server: ForkServer | None, *, beside: bool) -> None:
        """Do the extras of `job_id`.

        `server` forks their processes; None: they are fresh interpreters. `beside`: the next job may run meanwhile, so
        they have idle priority and give way where memory gets short.
        """
        self._server = server
        self._beside = beside
        self._worker = worker
        self._job_id = job_id
        self._job = worker.settings.state_dir / JOBS / job_id
        self._log = structlog.get_logger("preflight").bind(job_id=job_id)

    def run(self) -> None:
        """Do the extras, unless the job has not ended, a newer attempt has taken over, or another process does them.

        Raises:
            Interrupted: asked to stop, or to give way; they stay pending.
        """
        if self._beside:
            use_idle_priority()
        attempt = next(pending_attempts(self._job), None)
        if attempt is None:
            return
        directory = self._job / str(attempt)
        with suppress(_InProgress, FileNotFoundError), exclusive(directory / LOCK, _give_up):
            pending = read_pending(self._job, attempt)
            if pending is None:
                (directory / FILE_NAME).unlink(missing_ok=True)
                return
            try:
                self._run(pending, attempt)
            except Superseded:
                self._log.warning("superseded", attempt=attempt, message="a newer attempt has taken over")
            except ArtifactError as error:
                self._log.warning("extras_postponed", message=error.message)

    def _run(self, pending: PendingExtras, attempt: int) -> None:
        job_id, settings = self._job_id, self._worker.settings
        fence = Fence(self._worker.connection, job_id, pending.owner, ttl=settings.state_ttl, request=pending.request)
        fence.resume(pending.rq_id, attempt)
        with ExitStack() as stack:
            paths = stack.enter_context(closing(open_paths(settings, job_id, attempt)))
            spool = stack.enter_context(closing(Spool(paths.job, job_id, attempt)))
            spooled = [one for one in spool.replay() if one.event.attempt == attempt]
            if not (any(one.event.type == "training_done" for one in spooled) or self._has_result()):
                return
            last = self._retry(lambda: fence.publish([], before={}, kept=settings.events_kept)) or 0
            events = RedisSink(fence, spool, kept=settings.events_kept, meta=self._meta(pending.rq_id))
            control = self._control(events)
            context = JobContext(
                settings=settings, worker=self._worker.name, job_id=job_id, attempt=attempt, paths=paths,
                sinks=(LogSink(job_id, attempt), events), control=control, server=self._server,
                features=self._worker.features,
                extras=ExtrasFile(paths.attempt, rq_id=pending.rq_id, owner=pending.owner, request=pending.request),
                seq=max([last, *(one.event.seq for one in spooled)]),
            )  # fmt: skip
            extras = without_told(context, pending.extras, [(one.event, one.result) for one in spooled])
            try:
                extras = add_extras(context, extras)
                control.drain()
            except Interrupted:
                events.flush(FLUSH_TIMEOUT)
                raise
        if not extras.left:
            context.extras.save(extras)
            paths.clear()

    def _control(self, events: RedisSink) -> ExtrasControl:
        if not self._beside:
            return ExtrasControl(events, self._worker.stop)
        memory = MemoryUse(share=detect(shares=self._worker.settings.shares).share)
        return ExtrasControl(events, self._worker.stop, partial(must_give_way, memory), patience=IDLE_PATIENCE)

    def _has_result(self) -> bool:
        return self._retry(lambda: stored_result(self._worker.connection, self._job_id)) is not None

    def _meta(self, rq_id: str) -> dict[str, JsonValue]:
        """Return RQ's `job.meta`, which the events of the extras add to."""
        (stored,) = self._retry(
            lambda: read_fields(self._worker.connection, keys.rq_job(rq_id), ["meta"], MAX_FIELD_BYTES)
        )
        return parse_meta(stored)

    def _retry(self, read: Callable[[], T]) -> T:
        return retry_until_available(read, "add the extras of a job", self._worker.stop.check)


def _give_up() -> None:
    raise _InProgress
