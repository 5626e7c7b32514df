"""Refused options: RQ's options of a job that this worker does not support; the job runs, and says so."""

from collections.abc import Mapping
from typing import Final

from redis import Redis
from rq import Queue

from preflight.queue.untrusted_job import UntrustedJob
from worker.admission.dependents import explain_foreign_queues, foreign_queues
from worker.config.settings import Settings

CALLBACK: Final = "{} is not called, because this worker imports nothing that a queue names; follow the job's events"
WEBHOOKS: Final = "webhooks are not sent, because this worker opens no URL that a queue names; follow the job's events"
REPEAT: Final = "the job is not repeated, because its signature serves once; enqueue each run signed"


def refused_options(connection: Redis, queue: Queue, job: UntrustedJob, settings: Settings) -> Mapping[str, str]:
    """Return RQ's option -> sentence for each refused option of a job; raises `redis.exceptions.RedisError`."""
    found = {name: WEBHOOKS if name == "webhooks" else CALLBACK.format(name) for name in job.options.refused}
    if job.options.repeats_left and settings.signing_key is not None:
        found["repeat"] = REPEAT
    queues = foreign_queues(connection, queue, job.id, settings)
    if queues:
        found["dependents"] = explain_foreign_queues(queues)
    return found
