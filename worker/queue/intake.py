"""Intake: an id taken from the queue becomes an admitted job, is refused, or goes into quarantine."""

from functools import partial
from typing import Final

import structlog
from redis import Redis
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import JobStatus

from preflight.client.delete import require_not_deleted
from preflight.errors import InvalidConfig, PreflightError
from preflight.queue.ids import resolve_event_id, resolve_job_id
from preflight.queue.payload import PoisonMessage
from preflight.queue.untrusted_job import UntrustedJob, fetch_job
from preflight.redis import keys
from preflight.redis.retry import PERMANENT_ERRORS
from preflight.redis.untrusted.bounded_replies import OVERSIZED
from worker.admission import quarantine
from worker.admission.acceptance import Replayed
from worker.admission.admit import AdmittedJob, admit
from worker.admission.refusal import publish_failure, quarantine_job
from worker.broker.rq_records import RqRecords, failed
from worker.broker.shared_keys import RedisRetry
from worker.config.settings import Settings
from worker.state.control import Interrupted

ENDED: Final = (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED, JobStatus.STOPPED)


class Intake:
    """Admits the jobs of one queue."""

    def __init__(
        self, connection: Redis, queue: Queue, settings: Settings, records: RqRecords, retry: RedisRetry
    ) -> None:
        """Admit jobs of `queue`; refused ones end in `records`, and `retry` waits for Redis."""
        self._connection = connection
        self._queue = queue
        self._settings = settings
        self._records = records
        self._retry = retry
        self._log = structlog.get_logger("preflight")

    def admit(self, raw_id: bytes) -> AdmittedJob | None:
        """Return the job of this id, as it came from the queue, or None when there is nothing to run.

        Any error but those of Redis would recur with every worker, so the job is quarantined.
        """
        try:
            if raw_id == OVERSIZED or len(raw_id) > quarantine.MAX_ENTRY_BYTES:  # it is in the list of those taken
                self._retry(lambda: quarantine.read_taken(self._connection, self._queue), "quarantine the job")
                return None
            return self._retry(partial(self._admit, raw_id), "read the job")
        except (Interrupted, *PERMANENT_ERRORS):
            raise
        except Exception as error:
            self.quarantine(raw_id.decode(errors="surrogateescape"), error)
            return None

    def _admit(self, raw_id: bytes) -> AdmittedJob | None:
        """Admit a job as `admit` does; may be called again."""
        try:
            job = fetch_job(raw_id, self._connection)
            if job.status not in ENDED:  # else it was enqueued twice under one id
                request = admit(job, self._connection, self._settings)
                require_not_deleted(self._connection, request.job_id or job.id)
                return AdmittedJob(job, request, resolve_job_id(job.args, job.id))
        except PoisonMessage as poison:
            self.quarantine_poison(poison)
            return None
        except NoSuchJobError:
            self._log.warning(
                "job_not_found",
                rq_id=ascii(raw_id)[:80],
                message="a job in the queue does not exist; its hash expired or was deleted",
            )
            for key in (keys.rq_dependents, keys.rq_dependencies):  # RQ keeps them for ever
                self._connection.expire(key(raw_id.decode("ascii")), self._settings.state_ttl)
        except InvalidConfig as error:
            self._refuse(job, error)
        self._connection.lrem(self._queue.intermediate_queue_key, 0, raw_id.decode("ascii"))
        return None

    def _refuse(self, job: UntrustedJob, error: PreflightError) -> None:
        """Fail a job that is not admitted."""
        own_id = resolve_job_id(job.args, job.id)
        copied = isinstance(error, Replayed) and own_id == job.id
        failure_id = None if copied else resolve_event_id(self._connection, own_id, job.id)
        publish_failure(self._connection, self._settings, failure_id, error, job.id)
        self._records.end_job(job, own_id, failed(job, f"{error.reason}: {error.message}"), None, None)

    def quarantine_poison(self, poison: PoisonMessage, claimed_id: str | None = None) -> None:
        """Take a job out of the queue for good; `claimed_id` as for `quarantine_job`."""
        quarantine_job(self._connection, self._queue, self._settings, poison, claimed_id)

    def quarantine(self, rq_id: str, error: Exception, claimed_id: str | None = None) -> None:
        """Quarantine a job that made this process fail."""
        self._log.error(
            "job_quarantined",
            rq_id=ascii(rq_id)[:80],
            message="taking the job failed; it is quarantined",
            exc_info=error,
        )
        why = f"taking it failed ({type(error).__name__}: {ascii(str(error))[:500]}); please report it"
        poison = PoisonMessage(why, rq_id)
        try:
            self._retry(lambda: self.quarantine_poison(poison, claimed_id), "quarantine the job")
        except (Interrupted, *PERMANENT_ERRORS):
            raise
        except Exception:  # the failure cannot be published, but the job has to leave the queue
            self._log.exception(
                "quarantine_not_published",
                rq_id=ascii(rq_id)[:80],
                message="the failure of the job cannot be published",
            )
            ttl = self._settings.state_ttl
            self._retry(
                lambda: quarantine.put(self._connection, self._queue, rq_id, why, ttl=ttl), "quarantine the job"
            )
