"""Presence: RQ's record of a worker, with its heartbeats and its state."""

import random
import time
from typing import Final, Literal

import structlog
from redis import Redis
from rq import Worker

from worker.broker.rq_records import RqRecords
from worker.broker.shared_keys import RedisRetry

IDLE_HEARTBEAT_INTERVAL: Final = 15.0
"""Seconds between two heartbeats of an idle worker, 20 % more or less; a busy one sends more, with those of its job."""

WorkerState = Literal["idle", "suspended", "busy"]


class Presence:
    """RQ's record of one worker. Every method raises `redis.exceptions.RedisError`, and may be called again."""

    def __init__(self, worker: Worker, connection: Redis, records: RqRecords, retry: RedisRetry) -> None:
        """Keep the record of `worker`, which RQ's methods write."""
        self._worker = worker
        self._connection = connection
        self._records = records
        self._retry = retry
        self._running: str | None = None
        """RQ's id of the job that runs."""
        self._is_idle = False
        """Whether RQ's records show the worker as idle."""
        self._is_suspended = False
        """Whether the worker was suspended at the last check between two jobs."""
        self._next_heartbeat = 0.0
        self._log = structlog.get_logger("preflight")

    def register(self) -> None:
        """Register the worker with RQ."""
        self._connection.delete(self._worker.key)  # RQ refuses a name that is registered in part
        Worker.register_birth(self._worker)

    def deregister(self) -> None:
        """Take the worker out of RQ's lists."""
        Worker.teardown(self._worker)

    def begin_job(self, rq_id: str) -> None:
        """Note that a job runs; its execution is recorded elsewhere."""
        self._running, self._is_idle = rq_id, False

    def begin_seat(self) -> None:
        """Note that the worker is about to take a seat in a group: it is not idle until `show_idle`."""
        self._is_idle = False

    def end_job(self) -> None:
        """Note that the job does not run any more."""
        self._running = None

    def heartbeat(self) -> None:
        """Send RQ's heartbeat; register again where Redis has lost this worker."""
        if not self._connection.exists(self._worker.key):
            self._register_again()
        self._worker.heartbeat()

    def heartbeat_idle(self, *, registered: bool) -> None:
        """Send a heartbeat of an idle worker where it is due; register again where it is not registered any more."""
        if not registered:
            self._register_again()
        if time.monotonic() >= self._next_heartbeat:
            self._records.renew_idle(self._worker.worker_ttl + 60)  # as long as RQ's own heartbeat keeps it
            self._next_heartbeat = time.monotonic() + random.uniform(0.8, 1.2) * IDLE_HEARTBEAT_INTERVAL  # noqa: S311

    def show_idle(self) -> None:
        """Record that the worker is idle, once after each job."""
        if not self._is_idle:
            self._records.end_executions()
            self._is_idle = True

    def note_suspension(self, suspended: bool, burst: bool) -> None:
        """Log and record a change in whether `rq suspend` keeps this worker from taking jobs."""
        if suspended != self._is_suspended:
            self._connection.hset(self._worker.key, "state", "suspended" if suspended else "idle")
            self._is_suspended = suspended
            self._log_suspension(burst)

    def _register_again(self) -> None:
        self._log.warning("redis_data_loss_detected", message="Redis lost its data; jobs that waited there are lost")
        self._retry.repair(self.register)
        idle: WorkerState = "suspended" if self._is_suspended else "idle"
        self._connection.hset(self._worker.key, "state", idle if self._running is None else "busy")
        if self._running is not None:
            self._connection.hset(self._worker.key, "current_job", self._running)

    def _log_suspension(self, burst: bool) -> None:
        worker = self._worker.name
        if not self._is_suspended:
            self._log.info("worker_resumed", worker=worker, message="the worker takes jobs again")
        elif burst:
            self._log.info("worker_suspended", worker=worker, message="workers are suspended; this one exits")
        else:
            self._log.info("worker_suspended", worker=worker, message="workers are suspended; `rq resume` ends it")
