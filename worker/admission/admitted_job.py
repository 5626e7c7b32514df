"""Admitted job: a job from the queue that may run."""

from dataclasses import dataclass

from preflight.queue.untrusted_job import UntrustedJob
from preflight.wire import TrainJob


@dataclass(frozen=True, slots=True)
class AdmittedJob:
    """A job from the queue that may run."""

    rq_job: UntrustedJob
    request: TrainJob
    job_id: str
