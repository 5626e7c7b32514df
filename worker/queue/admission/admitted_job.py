"""Admitted job: a job from the queue that may run, and its id."""

from collections.abc import Sequence
from dataclasses import dataclass

from training.errors import InvalidConfig
from worker.queue.untrusted_job import UntrustedJob
from worker.wire import TrainJob, is_job_id


@dataclass(frozen=True, slots=True)
class AdmittedJob:
    """A job from the queue that may run."""

    rq_job: UntrustedJob
    request: TrainJob
    job_id: str


def resolve_job_id(arguments: Sequence[object], rq_id: str) -> str:
    """Return the id of a job: the one in its request, else RQ's.

    A malformed id in the request is ignored here, so that the failure can be published under RQ's id.

    Raises:
        InvalidConfig: RQ's id is malformed too.
    """
    match arguments:
        case [{"job_id": str(own)}, *_] if is_job_id(own):
            return own
    if not is_job_id(rq_id):
        raise InvalidConfig(
            f"job_id is {ascii(rq_id)[:80]}, but must be 1 to 64 letters, digits, '.', '_' or '-'",
            field="job_id",
        )
    return rq_id
