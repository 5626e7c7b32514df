"""The process that runs one job: claims it, takes it through its stages, and books what became of it.

It is a fork of the worker without torch. Whatever it has to write it insists on; whatever it does can be done
again by another after it, because the result in Redis and the manifest on disk say what is done.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from rq import Queue, Worker
from rq.exceptions import InvalidJobOperation
from rq.executions import Execution
from rq.job import JobStatus
from rq.utils import now

from training.errors import InvalidConfig, PreflightError
from worker.fence import DEATHS_ALLOWED, Fence, Place, Superseded, step_aside
from worker.jobs import Outcome, execute, stored_result
from worker.patience import T, insist, spoiled
from worker.places import next_attempt
from worker.refusal import put_away, say_failed
from worker.run import Interrupted
from worker.safe_job import Poison, SafeJob
from worker.settings import Settings
from worker.wire import TrainJob, TrainResult

BUSY_PAUSE: Final = 1.0
"""Seconds before a job that runs elsewhere already goes round the queue again."""
FAREWELL: Final = 1.0
"""Seconds for which an interrupted supervisor tries to put its job back; then whoever watches the lease does."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A job that was taken from the queue and let in."""

    rq_job: SafeJob
    request: TrainJob
    job_id: str


class Told:
    """How often this process was told to stop."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> bool:
        """Whether it was."""
        return self.times > 0

    def look(self) -> None:
        """Raise `Interrupted` when it was."""
        if self.times:
            raise Interrupted


class Retried(Exception):
    """The job failed and waits in its queue for another try."""


class Supervisor:
    """Runs one job in this process."""

    def __init__(
        self, worker: Worker, queue: Queue, execution: Execution, taken: Taken, settings: Settings, told: Told
    ) -> None:
        """Run `taken`, which `worker` took from `queue`, under RQ's `execution`.

        Args:
            worker: whose bookkeeping is used.
            queue: where the job came from.
            execution: RQ's record of it.
            taken: the job.
            settings: of the service.
            told: counts the signals.
        """
        self._worker = worker
        self._connection: Redis = worker.connection
        self._taken = taken
        self._execution = execution
        self._settings = settings
        self._told = told
        self._place = Place(queue, taken.rq_job.id, execution.id)
        owner = f"{worker.name}/{execution.id}"
        self._fence = Fence(self._connection, taken.job_id, owner, ttl=settings.state_ttl)
        self._log = structlog.get_logger("preflight").bind(job_id=taken.job_id)

    def run(self) -> None:
        """Claim the job, run it and book its end.

        Raises:
            Interrupted: told to stop before the job was claimed, or while Redis was away.
            redis.exceptions.RedisError: Redis does not let this worker in any more.
        """
        try:
            self._run()
        except ResponseError as error:
            if not spoiled(error):
                raise
            self._put_away(f"a key of the job in Redis is not what it should be ({error})")

    def _run(self) -> None:
        least = next_attempt(self._settings, self._taken.job_id)
        claim = self._insist(lambda: self._fence.claim(least=least), "claim the job")
        match claim.word:
            case "claimed":
                self._run_claimed()
            case "done":
                self._return_stored()
            case "busy":
                self._step_aside()
            case "poisoned":
                self._put_away(
                    f"its worker died {claim.number} times in a row without coming further, at most "
                    f"{DEATHS_ALLOWED} are allowed"
                )

    def _put_away(self, why: str) -> None:
        """Take the job out of the queue for good."""
        poison = Poison(why, self._taken.rq_job.id)
        away = partial(put_away, self._connection, self._place.queue, self._settings, poison, self._taken.job_id)
        self._insist(away, "put the job into quarantine")

    def _run_claimed(self) -> None:
        job = self._taken.rq_job
        try:
            self._insist(self._book_begin, "book the job as running")
            self._execute(job)
            self._insist(self._fence.rest, "end the attempt")
        except Retried:
            return
        except Interrupted:
            self._hand_back()
        except Superseded:
            self._log.warning("superseded", attempt=self._fence.attempt, detail="a newer attempt has taken over")

    def _execute(self, job: SafeJob) -> None:
        """Run the job and book its outcome."""
        try:
            execute(
                self._taken.request, job, self._fence, self._connection, self._settings, self._worker.name, self._told,
                self._book,
            )  # fmt: skip
        except PreflightError as error:  # it could not begin
            self._insist(partial(self._book, error), "book the failure")

    def _book(self, outcome: Outcome) -> None:
        """Book an outcome with RQ; may be called again.

        Raises:
            Retried: the job failed and is back in its queue.
            Superseded: a newer attempt has taken over.
            redis.exceptions.RedisError: Redis did not take all of it.
        """
        if isinstance(outcome, PreflightError):
            self._book_failure(outcome)
        else:
            self._still_counts()
            self._book_success(outcome)

    def _book_failure(self, error: PreflightError) -> None:
        job = self._taken.rq_job
        if not error.told:  # it failed before there was a run to say so
            say_failed(self._connection, self._settings, self._taken.job_id, error)
        if error.retry and job.retries_left:
            self._fence.hand_back(self._place, front=False, retries_left=job.retries_left - 1)
            raise Retried
        self._still_counts()
        book_failure(self._worker, self._place, self._execution, job, error)

    def _still_counts(self) -> None:
        """Raise `Superseded` where a newer attempt has taken over: RQ's own bookkeeping does not ask."""
        self._fence.beat(further=False)

    def _hand_back(self) -> None:
        """Put the job to the front of its queue, without spending a retry."""
        deadline = time.monotonic() + FAREWELL
        while True:
            try:
                self._fence.hand_back(self._place, front=True)
                return
            except RedisError as error:
                if time.monotonic() > deadline:
                    self._log.warning("job_left_behind", error=str(error), detail="the next worker takes it back")
                    return
                time.sleep(0.1)

    def _return_stored(self) -> None:
        """Book a job that was finished before, by an attempt that could not."""
        result = self._insist(lambda: stored_result(self._connection, self._taken.job_id), "read the stored result")
        if result is None:
            raise InvalidConfig(f"the result of {self._taken.job_id} expired while it was read; enqueue it again")
        self._taken.rq_job.started_at = now()
        self._insist(partial(self._book_success, result), "book the job as finished")

    def _step_aside(self) -> None:
        """Let the attempt that runs go on; the queue remembers the job in case it dies."""
        deadline = time.monotonic() + BUSY_PAUSE
        while time.monotonic() < deadline and not self._told():
            time.sleep(0.05)
        insist(lambda: step_aside(self._connection, self._place), "step aside", lambda: None)

    def _book_begin(self) -> None:
        """Book the job as running with RQ; may be called again."""
        job = self._taken.rq_job
        self._worker.prepare_job_execution(job, remove_from_intermediate_queue=True)
        self._connection.persist(job.key)
        job.started_at = now()

    def _book_success(self, result: TrainResult) -> None:
        """Book the job as finished with RQ; may be called again."""
        job, worker = self._taken.rq_job, self._worker
        job.ended_at = now()
        job._result = result.model_dump(mode="json", exclude_none=True)
        job._status = JobStatus.FINISHED
        worker.execution = self._execution
        worker.handle_job_success(job, self._place.queue, self._place.queue.started_job_registry)

    def _insist(self, action: Callable[[], T], what: str) -> T:
        return insist(action, what, self._look)

    def _look(self) -> None:
        """Between two tries: keep the lease, hear the signal."""
        self._told.look()
        if self._fence.attempt:
            try:
                self._fence.beat(further=False)
            except RedisError:
                return


def book_failure(
    worker: Worker, place: Place, execution: Execution | None, job: SafeJob, error: PreflightError
) -> None:
    """Book a job as failed with RQ, never to be retried; may be called again.

    Raises:
        redis.exceptions.RedisError: Redis did not take all of it.
    """
    job.started_at = job.started_at or now()
    job.ended_at = now()
    job.retries_left = 0
    worker.execution = execution
    job.save(include_meta=False)
    worker.handle_job_failure(job, place.queue, exc_string=f"{error.reason}: {error.message}")
    try:
        booked = job.get_status() is JobStatus.FAILED
    except InvalidJobOperation:
        booked = False
    if not booked:  # RQ swallows what goes wrong there
        raise RedisConnectionError("the failure was not booked")
    place.queue.connection.lrem(place.queue.intermediate_queue_key, 0, job.id)
