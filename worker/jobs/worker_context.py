"""Worker context: values that all parts of one worker share."""

from collections.abc import Sequence
from dataclasses import dataclass

from redis import Redis
from rq import Queue

from worker.config.settings import Settings
from worker.jobs.hooks import Feature
from worker.state.control import StopSignal
from worker.state.packing.arbiter import Arbiter


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One worker: its connection, its queue, its name in RQ, its settings and the request to stop."""

    connection: Redis
    queue: Queue
    name: str
    settings: Settings
    stop: StopSignal
    arbiter: Arbiter | None = None
    """Arbiter with the share of the job that runs; None: jobs do not share the processors."""
    features: Sequence[Feature] = ()
