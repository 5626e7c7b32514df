"""The RQ worker's loop: take a job, run it in a work-horse, look after the queue meanwhile.

RQ's own loop is not used: it exits on the first job that it cannot read or the first error of Redis, and marks jobs
failed when Redis is away. RQ's data are used: queue, registries, job hash, results.
"""

import os
import random
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Final, TypeVar

import structlog
from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rq import Queue, Worker
from rq.serializers import JSONSerializer

from preflight.redis import keys
from preflight.redis.connection import SOCKET_TIMEOUT, shorten_waits
from preflight.redis.retry import (
    BASE_PAUSE_SECONDS,
    MAX_PAUSE_SECONDS,
    PERMANENT_ERRORS,
    REDIS,
    backoff,
    describe_error,
)
from worker.admission.acceptance import acceptance_ttl
from worker.admission.admit import AdmittedJob
from worker.broker.rq_records import RqRecords
from worker.broker.shared_keys import RedisRetry, shared_keys
from worker.config.settings import Settings
from worker.features.entries import FEATURES
from worker.jobs.worker_context import WorkerContext
from worker.queue.intake import Intake
from worker.queue.loop.chores import Chores
from worker.queue.loop.commands import Commands
from worker.queue.loop.idle_host import IdleHost
from worker.queue.loop.job_run import JobRunner
from worker.queue.loop.key_existence import KeyExistence
from worker.queue.loop.packing import Packing
from worker.queue.loop.presence import Presence
from worker.queue.standby import Standby
from worker.queue.work_horse import MONITOR_INTERVAL
from worker.state.control import Interrupted, StopSignal
from worker.state.signals import StopRequests, handle_stop_signals
from worker.state.supervision import Supervisor, is_outage
from worker.state.worker_lock import WorkerLock

WORKER_TTL: Final = 45
"""Seconds after which RQ's tools take a silent worker for dead."""
BLMOVE_TIMEOUT: Final = 1
"""Seconds for which a maintainer that has work waits at an empty queue."""
IDLE_STRETCH: Final = (1.2, 1.5)
"""Range of the random factor by which other workers wait longer, to spread their commands; signals wait as long."""
SUSPENSION_INTERVAL: Final = 0.6
"""Seconds between two checks of a suspended worker, and for which a signal waits for its handling."""


T = TypeVar("T")


class PreflightWorker(Worker):
    """Takes jobs one after the other and runs each in a work-horse."""

    def __init__(
        self, queue: Queue, connection: Redis, settings: Settings, *, with_scheduler: bool = True,
        run_companion: Callable[["PreflightWorker"], None] | None = None, companion_of: "PreflightWorker | None" = None,
    ) -> None:  # fmt: skip
        """Take jobs from `queue`; `with_scheduler`: enqueue its scheduled jobs, too, unless another worker does.

        `run_companion` runs, in a fork, a worker for another job at the same time; None: this one starts none. It gets
        this worker, as `companion_of` of that one, which shares its fork server, its ledger and requests to stop.
        """
        # Unique at every start: the name of a killed predecessor stays registered for a while.
        name = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
        super().__init__(
            [queue], name=name, connection=connection, serializer=JSONSerializer, worker_ttl=WORKER_TTL,
            job_monitoring_interval=MONITOR_INTERVAL, log_job_description=False,
            prepare_for_work=False,  # RQ asks for the list of all clients, for its own address in it
        )  # fmt: skip
        self.hostname, self.pid = socket.gethostname(), os.getpid()
        with suppress(ResponseError):  # not permitted
            connection.client_setname(name)
        self._queue = queue
        self._stop: StopSignal = StopSignal() if companion_of is None else companion_of._stop
        self._parts = Supervisor()
        self._requests = StopRequests()
        self._lock: WorkerLock | None = None
        self._running: AdmittedJob | None = None
        self._log = structlog.get_logger("preflight")
        self._retry = RedisRetry(connection, shared_keys(queue, name), self._on_retry)
        lender = None if companion_of is None else companion_of._standby
        self._standby: Standby = Standby(settings, lender=lender, is_lent=lambda: self._packing.has_companions)
        records = RqRecords(connection, queue, name, acceptance_ttl=acceptance_ttl(settings))
        self._intake = Intake(connection, queue, settings, records, self._retry)
        self._presence = Presence(self, connection, records, self._retry)
        self._commands = Commands(connection, self.pubsub_channel_name, settings, lambda: self._running)
        shared = WorkerContext(connection, queue, name, settings, self._stop, features=FEATURES)
        run = None if run_companion is None else partial(run_companion, self)
        self._packing: Packing = Packing(shared, run, None if companion_of is None else companion_of._packing)
        shared = replace(shared, arbiter=self._packing.arbiter)
        self._chores = Chores(
            shared, self._standby, self._intake, self._retry, self._parts, with_scheduler=with_scheduler,
            is_companion=companion_of is not None,
        )  # fmt: skip
        self._runner = JobRunner(shared, self._standby, records, self._retry, self._heartbeat_busy)
        self._host = IdleHost(shared, self._standby, self._heartbeat_busy)
        self._idle_work = [work for one in FEATURES if (work := one.seating(shared, self._host)) is not None]

    @property
    def connection_timeout(self) -> int:
        """Longest wait for an answer of Redis, in seconds; RQ's own 415 would hold up a worker that is to stop."""
        return SOCKET_TIMEOUT

    # --- start and stop

    def run(self, lock: WorkerLock, *, burst: bool) -> None:
        """Run jobs until a signal; with `burst`, until the queue is empty.

        Raises:
            redis.exceptions.AuthenticationError, NoPermissionError: Redis denies access.
            SystemExit: a second request to stop; the job was killed and requeued.
        """
        handle_stop_signals(self._on_signal)
        self._lock = lock
        try:
            self._retry(self._register_and_subscribe, "register", wrong_types=True)
            dead = lock.remove_dead()
            self._retry(lambda: self._chores.reaper.check(dead), "reclaim jobs of dead workers", wrong_types=True)
            while (job := self._take(burst)) is not None:
                self._run_job(job)
        except Interrupted:
            pass
        finally:
            self._packing.free_turn()
            self._chores.stop()
            self._packing.join(burst=burst)
            self._standby.stop()
            self._deregister()
        if self._stop.times > 1:
            raise SystemExit(1)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signal handler's signature
        """Forward the first request to the work-horse, whose child saves; kill it at the second."""
        before, self._stop.times = self._stop.times, self._requests.count(number)
        if self._stop.times == before:
            return
        forwarded = signal.SIGTERM if self._stop.times == 1 else signal.SIGKILL
        self._runner.signal(forwarded)
        self._host.signal(forwarded)
        self._chores.extras.signal(forwarded)
        self._packing.forward_stop()

    def _on_retry(self) -> None:
        self._touch_lock()
        self._stop.check()

    def _touch_lock(self) -> None:
        """Show health checks that this process runs, whether Redis is available or not."""
        self._packing.touch()
        if self._lock is not None:
            self._lock.touch(self._parts.failing())

    def _register_and_subscribe(self) -> None:
        self._presence.register()
        self._commands.subscribe()

    def _deregister(self) -> None:
        if REDIS.lasts:
            shorten_waits(self.connection)
        try:
            self._chores.release()
            self._presence.deregister()
            self._commands.close()
        except RedisError as error:
            self._log.warning(
                "deregister_failed", message=f"the worker stays registered for a while: {describe_error(error)}"
            )

    # --- taking a job

    def _take(self, burst: bool) -> AdmittedJob | None:
        """Return the next admitted job; None after a signal, or with `burst` when the queue is empty."""
        pauses = backoff(BASE_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while not self._stop():
            self._touch_lock()
            has_chores = burst and self._chores.remain(0)  # a job may have waited for them: look again once they end
            job: AdmittedJob | None = None
            try:
                self._reap_companions()
                raw_id = self._retry.repair(partial(self._do_idle_work, burst))
                REDIS.note_answer()
                if raw_id is not None:
                    job = self._intake.admit(raw_id)
                    if job is not None:
                        return job
                elif self._is_done(burst=burst, has_chores=has_chores):
                    return None
                pauses = backoff(BASE_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
            except PERMANENT_ERRORS:
                raise
            except RedisError as error:
                REDIS.note_failure(error, "take a job")
                self._stop.sleep(next(pauses))
            finally:
                if job is None:
                    self._packing.free_turn()
        return None

    def _is_done(self, *, burst: bool, has_chores: bool) -> bool:
        """Whether a worker that has found no job is to end; waits for its companions and extras for a moment."""
        if self._packing.is_spent:
            return True
        if burst and self._packing.has_companions:
            self._stop.sleep(BLMOVE_TIMEOUT)
            return False
        return burst and not self._packing.waits and not self._chores.remain(BLMOVE_TIMEOUT) and not has_chores

    def _reap_companions(self) -> None:
        """Reclaim the jobs of companions that died; raises `redis.exceptions.RedisError`."""
        if self._packing.reap() and self._lock is not None:
            own = None if self._running is None else self._running.rq_job.id
            self._chores.reaper.check(self._lock.remove_dead(), own=own)

    def _do_idle_work(self, burst: bool) -> bytes | None:
        """Send a heartbeat, handle commands, do chores; return the id of the next job, if one comes in time."""
        single = [self.key, keys.RQ_SUSPENDED, keys.offers(self._queue.name), self._chores.imports.key]
        existence = KeyExistence(single, self._chores.maintainer.watched)
        (registered, suspended, offered, importing), exist = existence.read(self.connection.exists(*existence.names))
        self._chores.imports.note(opened=importing)
        self._presence.heartbeat_idle(registered=registered)
        self._presence.show_idle()
        self._step("commands", self._commands.handle)
        has_work = self._chores.step(exist)
        if self._chores.extras.holds_back(BLMOVE_TIMEOUT):
            return None
        self._presence.note_suspension(suspended, burst)
        if suspended:
            self._stop.sleep(SUSPENSION_INTERVAL)
            return None
        timeout = BLMOVE_TIMEOUT * (1 if has_work else random.uniform(*IDLE_STRETCH))  # noqa: S311
        if not burst:
            for work in self._idle_work:
                self._step("seats", partial(self._retry.repair, partial(work.look, offered=offered)))
            if self._packing.is_shared and self._packing.may_sit() and self._seat(short=False):
                return None
        if not self._packing.may_take(timeout):
            return None
        if burst or self._packing.is_shared:
            return self._next_id(True, timeout)
        return self._next_id_or_seat(timeout)

    def _next_id_or_seat(self, timeout: float) -> bytes | None:
        """Return the id of the next job, if one comes in time; else take a seat in a group.

        A group that is short goes before a waiting job, any other one after it.
        """
        if self._seat(short=True):
            return None
        if any(work.has_offer(short=False) for work in self._idle_work):
            raw_id = self._next_id(True, timeout)
            if raw_id is not None or self._seat(short=False):
                return raw_id
        return self._next_id(False, timeout)

    def _seat(self, *, short: bool) -> bool:
        """Take a seat in a group that offers one; return once the worker has left that group."""
        work = next((work for work in self._idle_work if work.has_offer(short=short)), None)
        if work is None:
            return False
        self._presence.begin_seat()
        self._packing.begin_seat()
        try:
            return self._step("seats", partial(work.sit, short=short)) is True
        finally:
            self._packing.end()

    def _step(self, part: str, take: Callable[[], T]) -> T | None:
        """Return what a part of the loop returns; None where it fails: jobs are taken without it meanwhile.

        Raises:
            redis.exceptions.RedisError: Redis is away, or denies access.
        """
        return self._parts.step(part, take, None, passes=is_outage)

    def _next_id(self, at_once: bool, timeout: float) -> bytes | None:
        move = (self._queue.key, self._queue.intermediate_queue_key, "LEFT", "RIGHT")
        # redis-py's own method is declared for whole seconds only.
        raw_id: object = (
            self.connection.execute_command("LMOVE", *move)
            if at_once
            else self.connection.execute_command("BLMOVE", *move, timeout)
        )
        return raw_id.encode() if isinstance(raw_id, str) else raw_id if isinstance(raw_id, bytes) else None

    # --- running a job

    def _run_job(self, job: AdmittedJob) -> None:
        """Run a job to its end, or quarantine it where that makes this process fail."""
        self._running = job
        self._presence.begin_job(job.rq_job.id)
        try:
            self._packing.begin(job)
            self._begin_companion()
            self._runner.run(job)
        except (Interrupted, *PERMANENT_ERRORS):
            raise
        except Exception as error:
            self._intake.quarantine(job.rq_job.id, error, job.job_id)
        finally:
            self._running = None
            self._packing.end()
            self._presence.end_job()
            self._standby.job_ended()
            self._chores.extras.notice(job.job_id)

    def _begin_companion(self) -> None:
        """Start a companion where the next job may begin now: short jobs end before the first heartbeat."""
        self._standby.prepare()
        with suppress(RedisError):
            self._step("companions", self._packing.grow)

    def _heartbeat_busy(self, renew: Callable[[], None]) -> bool:
        """Send a busy worker's heartbeat, and `renew` that of its job; return whether Redis took both."""
        self._touch_lock()
        try:
            self._retry.repair(self._presence.heartbeat)
            self._step("commands", self._commands.handle)
            self._retry.repair(renew)
            self._step("companions", self._reap_companions)
            self._step("companions", self._packing.grow)
            existence = KeyExistence([self._chores.imports.key], self._chores.maintainer.watched)
            (importing,), exist = existence.read(self.connection.exists(*existence.names))
            running = None if self._running is None else self._running.rq_job.id
            self._chores.maintain(exist, running=running)
            self._chores.look_after_imports(opened=importing)
        except RedisError:
            return False  # the job continues, and its supervisor logs the outage
        return True
