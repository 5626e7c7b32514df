"""The RQ worker's loop: take a job, run it in a work-horse, look after the queue meanwhile.

RQ's own loop is not used: it exits on the first job that it cannot read or the first error of Redis, and marks jobs
failed when Redis is away. Its data are used: queue, registries, job hash, results.
"""

import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Final, Literal

import structlog
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.serializers import JSONSerializer

from training.errors import TimedOut
from worker.broker import keys
from worker.broker.backoff import backoff
from worker.broker.requeue import RqJobRef, read_lease, reclaim
from worker.broker.retry import (
    BASE_PAUSE_SECONDS,
    MAX_PAUSE_SECONDS,
    PERMANENT_ERRORS,
    REDIS,
    describe_error,
    is_wrong_type,
)
from worker.broker.rq_records import Execution, RqRecords, failed
from worker.broker.shared_keys import RedisRetry, shared_keys
from worker.config.settings import Settings
from worker.events.state import request_cancel
from worker.jobs.control import Interrupted, StopSignal
from worker.jobs.supervisor import Supervisor
from worker.ops.janitor import Janitor
from worker.ops.signals import handle_hangup
from worker.ops.standby import Standby
from worker.queue.admission.acceptance import acceptance_ttl
from worker.queue.admission.admitted_job import AdmittedJob
from worker.queue.intake import Intake
from worker.queue.maintenance.dependents import Dependents
from worker.queue.maintenance.extras import PendingExtrasChore
from worker.queue.maintenance.idle_calibration import IdleCalibration
from worker.queue.maintenance.late_extras import LateExtras
from worker.queue.maintenance.reaper import Reaper
from worker.queue.maintenance.registry_cleaner import RegistryCleaner
from worker.queue.maintenance.scheduler import Scheduler
from worker.queue.refusal import publish_failure
from worker.queue.untrusted_job import UntrustedJob
from worker.queue.work_horse import MONITOR_INTERVAL, WorkHorse, describe_exit
from worker.queue.worker_lock import WorkerLock
from worker.wire import is_job_id

WORKER_TTL: Final = 45
"""Seconds after which RQ's tools take a silent worker for dead."""
BLMOVE_TIMEOUT: Final = 1
"""Seconds for which a take waits at an empty queue, and a signal for its handling."""
SUSPENSION_INTERVAL: Final = 0.5
"""Seconds between two checks of a suspended worker, and for which a signal waits for its handling."""


class PreflightWorker(Worker):
    """Takes jobs one after the other and runs each in a work-horse."""

    def __init__(self, queue: Queue, connection: Redis, settings: Settings, *, with_scheduler: bool = True) -> None:
        """Take jobs from `queue`; `with_scheduler`: enqueue its scheduled jobs, too, unless another worker does."""
        # Unique at every start: the name of a killed predecessor stays registered for a while.
        name = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
        super().__init__(
            [queue], name=name, connection=connection, serializer=JSONSerializer, worker_ttl=WORKER_TTL,
            job_monitoring_interval=MONITOR_INTERVAL, log_job_description=False,
        )  # fmt: skip
        self._queue = queue
        self._settings = settings
        self._stop = StopSignal()
        self._lock: WorkerLock | None = None
        self._log = structlog.get_logger("preflight")
        self._records = RqRecords(connection, queue, name, acceptance_ttl=acceptance_ttl(settings))
        self._retry = RedisRetry(connection, shared_keys(queue, name), self._on_retry)
        self._intake = Intake(connection, queue, settings, self._records, self._retry)
        self._running: AdmittedJob | None = None
        self._horse: WorkHorse | None = None
        self._is_idle = False
        """Whether RQ's records say so."""
        self._is_suspended = False
        """As of the last check between two jobs."""
        self._shown_calibration: str | None = None
        """In the worker's hash; a job that comes meanwhile does not wait for its removal."""
        self._reaper = Reaper(connection, queue, self._intake.quarantine_poison)
        self._cleaner = RegistryCleaner(connection, queue, name, ttl=settings.state_ttl)
        self._dependents = Dependents(connection, queue, settings)
        self._scheduler = Scheduler(connection, queue, name, enabled=with_scheduler)
        self._janitor = Janitor(settings)
        self._standby = Standby(settings)
        self._extras = PendingExtrasChore(settings, self._fork_for_extras)
        self._idle_calibration = IdleCalibration(settings, self._stop, self._fork_for_idle)
        # Polled, not read by RQ's thread: a fork may find locks that a thread holds locked for ever.
        self._commands = connection.pubsub(ignore_subscribe_messages=True)

    # --- start and stop

    def run(self, lock: WorkerLock, *, burst: bool) -> None:
        """Run jobs until a signal; with `burst`, until the queue is empty.

        Raises:
            redis.exceptions.AuthenticationError, NoPermissionError: Redis denies access.
            SystemExit: a second signal; the job was killed and requeued.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        handle_hangup(self._on_signal)
        self._lock = lock
        try:
            self._retry(self._register_and_subscribe, "register", wrong_types=True)
            dead = lock.remove_dead()
            self._retry(lambda: self._reaper.check(dead), "reclaim jobs of dead workers", wrong_types=True)
            while (job := self._take(burst)) is not None:
                self._run_job(job)
        except Interrupted:
            pass
        finally:
            self._idle_calibration.stop("the worker stops")
            self._extras.stop()
            self._standby.stop()
            self._deregister()
        if self._stop.times > 1:
            raise SystemExit(1)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signal handler's signature
        """Forward the first signal to the work-horse, whose child saves; kill it at the second."""
        if number == signal.SIGHUP and self._stop():
            return  # shell and kernel may each send one when a terminal closes
        self._stop.times += 1
        forwarded = signal.SIGTERM if self._stop.times == 1 else signal.SIGKILL
        if self._horse is not None:
            self._horse.signal(forwarded)
        self._extras.signal(forwarded)

    def _on_retry(self) -> None:
        self._touch_lock()
        self._stop.check()

    def _touch_lock(self) -> None:
        """Show health checks that this process runs, whether Redis is available or not."""
        if self._lock is not None:
            self._lock.touch()

    def _register_and_subscribe(self) -> None:
        self._register()
        self._commands.subscribe(self.pubsub_channel_name)

    def _register(self) -> None:
        self.connection.delete(self.key)  # RQ refuses a name that is registered in part
        Worker.register_birth(self)

    def _deregister(self) -> None:
        try:
            self._scheduler.stop()
            Worker.teardown(self)
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
            try:
                raw_id = self._retry.repair(partial(self._do_idle_work, burst))
                REDIS.note_answer()
                if raw_id is not None:
                    self._idle_calibration.stop()
                    job = self._intake.admit(raw_id)
                    if job is not None:
                        return job
                elif burst and not self._cleaner.due() and not self._extras.remain(BLMOVE_TIMEOUT):
                    return None
                pauses = backoff(BASE_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
            except PERMANENT_ERRORS:
                raise
            except RedisError as error:
                REDIS.note_failure(error, "take a job")
                time.sleep(next(pauses))
        return None

    def _do_idle_work(self, burst: bool) -> bytes | None:
        """Send a heartbeat, handle commands, do chores; return the id of the next job, if one comes in time."""
        self._send_heartbeat()
        if not self._is_idle:
            self._records.end_executions()
            self._is_idle = True
        self._handle_commands()
        self._do_chores()
        if self._extras.holds_back(BLMOVE_TIMEOUT):
            return None
        if self._check_suspension(burst):
            time.sleep(SUSPENSION_INTERVAL)
            return None
        return self._next_id(burst)

    def _check_suspension(self, burst: bool) -> bool:
        """Return whether `rq suspend` keeps this worker from taking jobs; log and record when that changes."""
        suspended = bool(self.connection.exists(keys.RQ_SUSPENDED))
        if suspended != self._is_suspended:
            self.connection.hset(self.key, "state", "suspended" if suspended else "idle")
            self._is_suspended = suspended
            if not suspended:
                self._log.info("worker_resumed", worker=self.name, message="the worker takes jobs again")
            elif burst:
                self._log.info("worker_suspended", worker=self.name, message="workers are suspended; this one exits")
            else:
                self._log.info(
                    "worker_suspended", worker=self.name, message="workers are suspended; `rq resume` ends it"
                )
        return suspended

    def _do_chores(self) -> None:
        """Do what is due; a bug in a chore must not keep jobs waiting."""
        for chore, step in (
            (self._reaper, self._reap), (self._scheduler, self._scheduler.step),
            (self._dependents, self._dependents.step), (self._cleaner, self._cleaner.step),
            (self._janitor, self._janitor.step), (self._extras, self._extras.step),
            (self._standby, self._standby.step), (self._idle_calibration, self._calibrate_in_idle_time),
        ):  # fmt: skip
            try:
                if chore.due():
                    self._retry.repair(step)
            except Exception as error:
                if isinstance(error, RedisError) and not is_wrong_type(error):
                    raise
                self._log.exception(
                    "chore_failed", chore=type(chore).__name__, message="a chore between two jobs failed"
                )

    def _calibrate_in_idle_time(self) -> None:
        """Go on with a calibration unless extras run, the worker is suspended, or a process beside it runs a job."""
        quiet = not (self._is_suspended or self._extras.remain(0))
        if quiet and self._settings.processes > 1:  # they share caches and memory bandwidth
            quiet = self.connection.zcard(self._queue.started_job_registry.key) == 0
        self._idle_calibration.step(quiet)
        workload = self._idle_calibration.workload
        if workload != self._shown_calibration:
            if workload is None:
                self.connection.hdel(self.key, keys.CALIBRATING)
            else:
                self.connection.hset(self.key, keys.CALIBRATING, workload)
            self._shown_calibration = workload

    def _reap(self) -> None:
        self._retry.rename_wrong_types()  # producers need these keys, too
        self._reaper.check()

    def _next_id(self, burst: bool) -> bytes | None:
        source, between = self._queue.key, self._queue.intermediate_queue_key
        if burst:
            raw_id = self.connection.lmove(source, between, "LEFT", "RIGHT")
        else:
            raw_id = self.connection.blmove(source, between, BLMOVE_TIMEOUT, "LEFT", "RIGHT")
        return raw_id.encode() if isinstance(raw_id, str) else raw_id

    # --- running a job

    def _run_job(self, job: AdmittedJob) -> None:
        """Run a job to its end, or quarantine it where that makes this process fail."""
        self._running, self._is_idle = job, False
        try:
            self._execute(job)
        except (Interrupted, *PERMANENT_ERRORS):
            raise
        except Exception as error:
            self._intake.quarantine(job.rq_job.id, error, job.job_id)
        finally:
            self._running = None
            self._standby.job_ended()
            self._extras.notice(job.job_id)

    def _execute(self, job: AdmittedJob) -> None:
        """Run the job in a work-horse, and requeue it when that dies."""
        execution = Execution(secrets.token_hex(16), time.time())
        self._retry(lambda: self._records.begin_execution(job.rq_job, execution), "record the execution")
        ref = RqJobRef(self._queue, job.rq_job.id, execution.id)
        status = "not begun" if self._stop() else self._run_work_horse(job, execution)
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
            Supervisor(
                self.connection, self._queue, self.name, execution, job, self._settings, self._stop,
                self._standby.server,
            ).run()  # fmt: skip

        self._standby.prepare()
        self._horse = WorkHorse(
            job.job_id, supervise, self._stop, lambda: self._heartbeat_job(job.rq_job, execution),
            self._standby.stop, timeout=job.rq_job.timeout,
        )  # fmt: skip
        try:
            return self._horse.run()
        finally:
            self._horse = None

    def _fork_for_extras(self, job_id: str, beside: bool) -> WorkHorse | None:
        server = None if beside else self._standby.server  # its children have its priority
        extras = LateExtras(self.connection, self._settings, self.name, job_id, self._stop, server, beside=beside)
        horse = WorkHorse(job_id, extras.run, self._stop, lambda: True, self._standby.stop, timeout=-1)
        try:
            horse.start()
        except OSError as error:
            self._log.warning(
                "fork_retry",
                job_id=job_id,
                message=f"the extras of a job wait, as no process could be started: {error.strerror}",
            )
            return None
        return horse

    def _fork_for_idle(self, run: Callable[[], None]) -> WorkHorse | None:
        horse = WorkHorse(None, run, self._stop, lambda: True, self._standby.stop, timeout=-1)
        try:
            horse.start()
        except OSError:  # a limit on processes or memory: nobody waits for it
            return None
        return horse

    def _fail_late(self, admitted: AdmittedJob, execution: Execution) -> None:
        """Fail a job whose work-horse ignored its timeout and was killed."""
        job = admitted.rq_job
        late = TimedOut(f"the job ran longer than {job.timeout} s and did not stop; its supervisor was killed")
        self._retry(
            lambda: publish_failure(self.connection, self._settings, admitted.job_id, late, job.id),
            "publish the failure",
        )
        end = failed(job, f"{late.reason}: {late.message}")
        self._retry(lambda: self._records.end_job(job, admitted.job_id, end, execution, None), "record the failure")

    def _requeue(self, job: AdmittedJob, ref: RqJobRef) -> None:
        """Put a job that no longer runs at the front of its queue, unless another worker's attempt holds its lease."""
        owner = f"{self.name}/{ref.execution} "

        def put_back() -> None:
            lease = read_lease(self.connection, job.job_id)
            if not lease or lease.startswith(owner):
                reclaim(self.connection, job.job_id, ref, lease=lease)

        try:
            self._retry(put_back, "requeue the job")
        except Interrupted:
            self._log.warning(
                "requeue_failed", job_id=job.job_id, message="the job is not requeued; the next worker reclaims it"
            )

    # --- heartbeats and commands

    def _heartbeat_job(self, job: UntrustedJob, execution: Execution) -> bool:
        """Send the heartbeats of worker and job; returns whether Redis took them."""
        self._touch_lock()
        try:
            self._retry.repair(self._send_heartbeat)
            self._handle_commands()
            self._retry.repair(lambda: self._records.renew_execution(job, execution))
            if self._scheduler.due():
                self._retry.repair(self._scheduler.step)
        except RedisError:
            return False  # the job continues, and its supervisor logs the outage
        return True

    def _send_heartbeat(self) -> None:
        """Send RQ's heartbeat; register again where Redis has lost this worker."""
        if not self.connection.exists(self.key):
            self._log.warning(
                "redis_data_loss_detected", message="Redis lost its data; jobs that waited there are lost"
            )
            self._retry.repair(self._register)
            idle = "suspended" if self._is_suspended else "idle"
            self.connection.hset(self.key, "state", idle if self._running is None else "busy")
            if self._running is not None:
                self.connection.hset(self.key, "current_job", self._running.rq_job.id)
        self.heartbeat()

    def _handle_commands(self) -> None:
        """Handle RQ's commands: `shutdown` is a SIGTERM, to stop a job a cancellation; others are ignored."""
        while (message := self._commands.get_message(timeout=0)) is not None:
            try:
                command = json.loads(message["data"])
            except (ValueError, RecursionError):
                continue
            match command:
                case {"command": "shutdown"}:
                    os.kill(os.getpid(), signal.SIGTERM)
                case {"command": "stop-job" | "stop-execution", "job_id": str(rq_id)} if is_job_id(rq_id):
                    running = self._running
                    job_id = running.job_id if running is not None and running.rq_job.id == rq_id else rq_id
                    request_cancel(self.connection, job_id, ttl=self._settings.state_ttl)
