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
from redis.exceptions import RedisError
from rq import Queue

from training.errors import InvalidConfig, PreflightError
from worker.broker.fencing import DEATHS_ALLOWED, Fence, Place, Superseded, step_aside, take_back
from worker.broker.retry import HOPELESS, T, insist, spoiled
from worker.broker.rq_records import Execution, RqRecords, failed, finished
from worker.broker.shared_keys import repairing, shared_keys
from worker.config.settings import Settings
from worker.jobs.heartbeat import Outcome, StoredResultUnreadable, execute, stored_result
from worker.jobs.paths import next_attempt
from worker.jobs.pipeline import Interrupted
from worker.queue.admission.admit import accepted_ttl, keep_accepted
from worker.queue.refusal import put_away, say_failed, say_mismatch
from worker.queue.registry_cleaner import list_as_cancelled
from worker.queue.untrusted_job import Poison, SafeJob
from worker.wire import TrainJob

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
        self, connection: Redis, queue: Queue, worker_name: str, execution: Execution, taken: Taken,
        settings: Settings, told: Told,
    ) -> None:  # fmt: skip
        """Run `taken`, which a worker took from `queue`, under `execution`.

        Args:
            connection: to Redis.
            queue: where the job came from.
            worker_name: of the worker.
            execution: RQ's record of it.
            taken: the job.
            settings: of the service.
            told: counts the signals.
        """
        self._connection = connection
        self._worker_name = worker_name
        self._taken = taken
        self._execution = execution
        self._settings = settings
        self._told = told
        self._place = Place(queue, taken.rq_job.id, execution.id)
        self._records = RqRecords(connection, queue, worker_name, accepted_ttl=accepted_ttl(settings))
        self._shared_keys = shared_keys(queue, worker_name)
        self._fence = Fence(
            connection, taken.job_id, f"{worker_name}/{execution.id}", ttl=settings.state_ttl,
            request=taken.request.digest(),
        )  # fmt: skip
        self._failed = False
        self._log = structlog.get_logger("preflight").bind(job_id=taken.job_id)

    def run(self) -> None:
        """Claim the job, run it and record its end.

        What goes wrong before an attempt is claimed would go wrong with every worker: the job is quarantined. After
        that the attempt has died, and deaths are counted.

        Raises:
            Interrupted: told to stop before the job was claimed, or while Redis was away.
            redis.exceptions.RedisError: Redis does not let this worker in any more.
        """
        try:
            self._run()
        except (Interrupted, *HOPELESS):
            raise
        except RedisError as error:
            if not spoiled(error):
                raise
            self._put_away(f"a key of the job in Redis is not what it should be ({error})")
        except StoredResultUnreadable as error:
            self._put_away(error.message)
        except Exception as error:
            if self._fence.attempt:
                raise
            self._log.exception("job_quarantined")
            self._put_away(f"it could not be begun ({type(error).__name__}: {error})")

    def _run(self) -> None:
        allowed = max(DEATHS_ALLOWED, self._taken.rq_job.retries_left)
        least = next_attempt(self._settings, self._taken.job_id)
        claim = self._insist(
            lambda: self._fence.claim(self._taken.rq_job.id, least=least, deaths_allowed=allowed), "claim the job"
        )
        match claim.word:
            case "claimed":
                self._run_claimed()
            case "done":
                self._return_stored()
            case "busy":
                self._step_aside()
            case "poisoned":
                self._put_away(
                    f"its worker died {claim.number} times in a row without coming further, at most {allowed} are "
                    "allowed"
                )
            case "looping":
                self._put_away(f"it is finished, but its end could not be recorded in {claim.number} tries")
            case "mismatch":
                self._refuse_mismatch()
            case "over":
                self._insist(self._clear_away, "clear the job away")

    def _put_away(self, why: str) -> None:
        """Take the job out of the queue for good."""
        poison = Poison(why, self._taken.rq_job.id)
        away = partial(put_away, self._connection, self._place.queue, self._settings, poison, self._taken.job_id)
        self._insist(away, "put the job into quarantine")

    def _clear_away(self) -> None:
        """Remove what is left of the taking of a job that has ended meanwhile."""
        take_back(self._connection, self._taken.job_id, self._place, lease="")

    def _refuse_mismatch(self) -> None:
        """Fail a job whose id belongs to another request, without touching what that one has."""
        job, job_id = self._taken.rq_job, self._taken.job_id
        error = InvalidConfig(
            f"job_id is {job_id!r}, which belongs to another request; enqueue this one under an id of its own",
            field="job_id",
        )
        self._insist(
            lambda: say_mismatch(self._connection, self._settings, job_id, job.id, error), "publish the failure"
        )
        end = failed(job, f"{error.reason}: {error.message}")
        self._insist(
            lambda: self._records.end_job(job, self._taken.job_id, end, self._execution, None), "record the failure"
        )

    def _run_claimed(self) -> None:
        try:
            self._insist(self._start, "record the job as started")
            self._execute(self._taken.rq_job)
            self._insist(lambda: self._fence.rest(failed=self._failed), "end the attempt")
        except Retried:
            return
        except Interrupted:
            self._hand_back()
        except Superseded:
            self._log.warning("superseded", attempt=self._fence.attempt, detail="a newer attempt has taken over")

    def _start(self) -> None:
        """Record the job as started, or restore what Redis has lost of it."""
        self._records.start_job(self._taken.rq_job, self._execution, self._fence)
        keep_accepted(self._connection, self._taken.rq_job, self._taken.job_id, self._settings)

    def _execute(self, job: SafeJob) -> None:
        """Run the job and record its outcome."""
        try:
            execute(
                self._taken.request, self._taken.job_id, job, self._fence, self._connection, self._settings,
                self._worker_name, self._told, self._start,
                lambda outcome: self._repairing(partial(self._book, outcome)),
            )  # fmt: skip
        except PreflightError as error:  # it could not begin
            self._insist(partial(self._book, error), "record the failure")

    def _book(self, outcome: Outcome) -> None:
        """Record an outcome with RQ; may be called again.

        Raises:
            Retried: the job failed and is back in its queue.
            Superseded: a newer attempt has taken over.
            redis.exceptions.RedisError: Redis did not take all of it.
        """
        job = self._taken.rq_job
        if isinstance(outcome, PreflightError):
            self._book_failure(outcome)
            return
        if outcome.status == "cancelled":  # with RQ it has finished: among thousands of those nobody would find it
            list_as_cancelled(self._connection, self._place.queue, job.id)
        self._records.end_job(job, self._taken.job_id, finished(job, outcome), self._execution, self._fence)

    def _book_failure(self, error: PreflightError) -> None:
        job = self._taken.rq_job
        if not error.told:  # it failed before there was a run to say so
            say_failed(self._connection, self._settings, self._taken.job_id, error)
        if error.retry and job.retries_left:
            left = job.retries_left - 1
            self._records.requeue(job, self._place, self._fence, front=False, retries_left=left)
            raise Retried
        end = failed(job, f"{error.reason}: {error.message}")
        self._records.end_job(job, self._taken.job_id, end, self._execution, self._fence)
        self._failed = True

    def _hand_back(self) -> None:
        """Put the job to the front of its queue, without spending a retry."""
        deadline = time.monotonic() + FAREWELL
        while True:
            try:
                self._records.requeue(self._taken.rq_job, self._place, self._fence, front=True)
                return
            except Superseded:
                return
            except RedisError as error:
                if time.monotonic() > deadline:
                    self._log.warning("job_left_behind", error=str(error), detail="the next worker takes it back")
                    return
                time.sleep(0.1)

    def _return_stored(self) -> None:
        """Record the end of a job that was finished before, by an attempt that could not."""
        job = self._taken.rq_job
        result = self._insist(lambda: stored_result(self._connection, self._taken.job_id), "read the stored result")
        if result is None:  # it expired between claim and read
            self._run()
            return
        end = finished(job, result)
        self._insist(
            lambda: self._records.end_job(job, self._taken.job_id, end, self._execution, None),
            "record the job as finished",
        )
        self._insist(self._fence.end_round, "end the round")

    def _step_aside(self) -> None:
        """Let the attempt that runs go on; the queue remembers the job in case it dies."""
        deadline = time.monotonic() + BUSY_PAUSE
        while time.monotonic() < deadline and not self._told():
            time.sleep(0.05)
        insist(lambda: step_aside(self._connection, self._place), "step aside", lambda: None)

    def _insist(self, action: Callable[[], T], what: str) -> T:
        return insist(lambda: self._repairing(action), what, self._look)

    def _repairing(self, action: Callable[[], T]) -> T:
        return repairing(action, self._connection, self._shared_keys)

    def _look(self) -> None:
        """Between two tries: keep the lease, hear the signal."""
        self._told.look()
        if self._fence.attempt:
            try:
                self._fence.beat(further=False)
            except RedisError:
                return
