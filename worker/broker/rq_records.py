"""RQ's records of a job: its execution, status, end and result, each written by one script.

RQ's own methods take several steps, retry failed jobs and differ between versions. The scripts write the format that
RQ 2.6 to 3.0 reads.
"""

import base64
import json
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from redis import Redis
from rq import Queue
from rq.defaults import DEFAULT_FAILURE_TTL, DEFAULT_RESULT_TTL

from preflight.queue.untrusted_job import UntrustedJob
from preflight.redis import keys
from preflight.redis.lua import TEXT, run_script
from preflight.redis.replies import as_date
from preflight.wire import TrainResult
from worker.broker.fencing import Fence, Superseded
from worker.broker.requeue import RqJobRef

EXECUTION_TTL: Final = 90
"""Seconds after its last heartbeat for which an execution counts as alive; RQ's default."""
SUCCESSFUL: Final = 1
FAILED: Final = 2
"""Types of a result in RQ's stream of results."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a job, as RQ records it."""

    id: str
    started_at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of a job, in RQ's terms."""

    status: Literal["finished", "failed", "stopped"]
    ttl: int
    """Seconds for which RQ keeps the job; -1: for ever."""
    result: Mapping[str, str]
    """Fields of the record in RQ's stream of results."""


def finished(job: UntrustedJob, result: TrainResult) -> End:
    """Return the end of a job that has a result."""
    value = json.dumps(result.model_dump(mode="json", exclude_none=True)).encode()
    ttl = DEFAULT_RESULT_TTL if job.result_ttl is None else job.result_ttl
    fields = {"type": str(SUCCESSFUL), "return_value": base64.b64encode(value).decode()}
    return End(status="finished", ttl=ttl, result=fields)


def failed(job: UntrustedJob, why: str) -> End:
    """Return the end of a job that failed and is not retried."""
    return _without_value(job, "failed", why)


def stopped(job: UntrustedJob, why: str) -> End:
    """Return the end of a job that was stopped on request; RQ lists it with the failed ones."""
    return _without_value(job, "stopped", why)


def _without_value(job: UntrustedJob, status: Literal["failed", "stopped"], why: str) -> End:
    ttl = DEFAULT_FAILURE_TTL if job.failure_ttl is None else job.failure_ttl
    packed = base64.b64encode(zlib.compress(why.encode(errors="replace"))).decode()
    return End(status=status, ttl=ttl, result={"type": str(FAILED), "exc_string": packed})


class RqRecords:
    """Writes RQ's records for one worker. Every method may be called again, and raises `RedisError`."""

    def __init__(self, connection: Redis, queue: Queue, worker_name: str, *, acceptance_ttl: int) -> None:
        """Write the records of `queue` for a worker.

        `acceptance_ttl` is the time in seconds for which the record of a used-up signed message is kept.
        """
        self._connection = connection
        self._queue = queue
        self._worker_name = worker_name
        self._acceptance_ttl = acceptance_ttl

    def begin_execution(self, job: UntrustedJob, execution: Execution) -> None:
        """Record that the worker executes the job."""
        run_script(
            self._connection, "rq/begin_execution", TEXT,
            keys=[self._queue.started_job_registry.key, keys.rq_worker(self._worker_name)],
            args=[job.id, execution.id, self._worker_name, EXECUTION_TTL],
        )  # fmt: skip

    def renew_execution(self, job: UntrustedJob, job_id: str, execution: Execution) -> None:
        """Renew the execution, unless it has ended."""
        run_script(
            self._connection, "rq/renew_execution", TEXT,
            keys=[self._queue.started_job_registry.key, keys.rq_job(job.id), keys.fence(job_id)],
            args=[job.id, execution.id, self._worker_name, EXECUTION_TTL, as_date(time.time())],
        )  # fmt: skip

    def end_executions(self) -> None:
        """Record that the worker is idle."""
        pipe = self._connection.pipeline(transaction=True)
        pipe.hset(keys.rq_worker(self._worker_name), "state", "idle")
        pipe.hdel(keys.rq_worker(self._worker_name), "current_job")
        pipe.delete(keys.rq_worker_executions(self._worker_name))
        pipe.execute()

    def renew_idle(self, ttl: int) -> None:
        """Send RQ's heartbeat of an idle worker, whose record is kept for `ttl` seconds."""
        pipe = self._connection.pipeline(transaction=False)
        pipe.hset(keys.rq_worker(self._worker_name), "last_heartbeat", as_date(time.time()))
        pipe.expire(keys.rq_worker(self._worker_name), ttl)
        pipe.execute()

    def start_job(self, job: UntrustedJob, execution: Execution, fence: Fence) -> None:
        """Mark the job as started; where Redis lost its data, restore its hash first.

        Raises:
            Superseded: a newer attempt has taken over.
        """
        fields = [part for name, value in job.fields.items() for part in (name, value)]
        for restored in ([], fields):
            answer = run_script(
                self._connection, "rq/start_job", TEXT,
                keys=[
                    keys.fence(fence.job_id), self._queue.started_job_registry.key, self._queue.intermediate_queue_key,
                    keys.rq_job(job.id),
                ],
                args=[
                    fence.owner, fence.attempt, job.id, execution.id, self._worker_name, EXECUTION_TTL,
                    as_date(time.time()), *restored,
                ],
            )  # fmt: skip
            if answer == "superseded":
                raise Superseded
            if answer == "ok":
                return

    def end_job(
        self, job: UntrustedJob, job_id: str, end: End, execution: Execution | None, fence: Fence | None
    ) -> None:
        """Record the end of the job, once, and that its signed message is used up.

        `execution` and `fence` are None where no attempt had begun.

        Raises:
            Superseded: a newer attempt has taken over.
        """
        if self._end_job(job, job_id, end, execution, fence) == "gone" and execution is not None and fence is not None:
            self.start_job(job, execution, fence)
            self._end_job(job, job_id, end, execution, fence)

    def _end_job(
        self, job: UntrustedJob, job_id: str, end: End, execution: Execution | None, fence: Fence | None
    ) -> str:
        now, queue = time.time(), self._queue
        registry = queue.finished_job_registry if end.status == "finished" else queue.failed_job_registry
        counter = "successful_job_count" if end.status == "finished" else "failed_job_count"
        began = now if execution is None else execution.started_at
        result = {"worker_name": self._worker_name, **end.result}
        if execution is not None:
            result |= {
                "execution_id": execution.id, "execution_started_at": str(began), "execution_ended_at": str(now),
            }  # fmt: skip
        answer = run_script(
            self._connection, "rq/end_job", TEXT,
            keys=[
                keys.fence(job_id), queue.started_job_registry.key, queue.intermediate_queue_key, keys.rq_job(job.id),
                registry.key, keys.rq_results(job.id), keys.rq_worker(self._worker_name), keys.accepted(job_id),
                keys.ended(queue.name),
            ],
            args=[
                fence.owner if fence else "", fence.attempt if fence else 0, job.id, execution.id if execution else "",
                end.status, now, as_date(now), end.ttl, counter, max(0.0, now - began), self._acceptance_ttl,
                *(part for pair in result.items() for part in pair),
            ],
        )  # fmt: skip
        if answer == "superseded":
            raise Superseded
        return answer

    def requeue(self, job: UntrustedJob, ref: RqJobRef, fence: Fence, put_back: Callable[[], str]) -> None:
        """Requeue the job of the running attempt by `put_back`, a call of `Fence.requeue`; restore records of RQ's."""
        if put_back() == "gone":
            self.start_job(job, Execution(ref.execution, time.time()), fence)
            put_back()
