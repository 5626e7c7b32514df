"""Job context: what every stage of a job needs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from preflight.files.locks import Held
from preflight.wire import EVENT, MAX_TEXT_LENGTH, ROUNDED, TrainResult
from training.process.fork_server.client import ForkServer
from training.system.digests import Digests
from worker.broker.fencing import Fence
from worker.config.settings import Settings, job_environment
from worker.events.log_sink import Sink
from worker.jobs.hooks import Feature
from worker.jobs.stages.dataset_pin import DatasetPin
from worker.jobs.stages.pending_extras import ExtrasStore
from worker.jobs.stages.plan_store import PlanStore
from worker.state.control import JobControl
from worker.state.packing.share import ProcessorShare
from worker.state.paths import JobPaths


@dataclass(slots=True, kw_only=True)
class JobContext:
    """One attempt of a job: its settings, files, event sinks and control."""

    settings: Settings
    worker: str
    """Name of the worker."""
    job_id: str
    attempt: int
    sinks: Sequence[Sink]
    paths: JobPaths
    enqueued_at: float | None = None
    """Time of enqueueing, in seconds since the epoch; None: the job is not from a queue."""
    warnings: Sequence[str] = ()
    """Warnings that are emitted when the job begins."""
    control: JobControl = field(default_factory=JobControl)
    plans: PlanStore = field(default_factory=PlanStore)
    pin: DatasetPin | None = None
    """Store of the data set's version; None: the job's directory."""
    fence: Fence | None = None
    """Fence of the attempt; None: a job without Redis."""
    server: ForkServer | None = None
    """Server that forks the children of the job; None: they are fresh interpreters."""
    processors: ProcessorShare = field(default_factory=ProcessorShare)
    """Share of the job in the processors while other jobs run here."""
    features: Sequence[Feature] = ()
    extras_server: ForkServer | None = None
    """Server that forks the processes of extras; None: `server` does."""
    environment: Mapping[str, str] = field(init=False)
    """Environment of child processes."""
    extras: ExtrasStore = field(default_factory=ExtrasStore)
    digests: Digests = field(init=False)
    """The data and checkpoints that were verified in this attempt."""
    held: list[Held] = field(default_factory=list)
    """Locks of the files that the job reads, until this process ends."""
    seq: int = 0
    """Sequence number of the last event."""

    def __post_init__(self) -> None:
        self.environment = job_environment(self.settings)
        self.digests = Digests(alive=self.control.check)

    def emit(self, kind: str, fields: dict[str, JsonValue], result: TrainResult | None = None) -> None:
        """Send an event of type `kind` to every sink; `result` goes with one that finishes the job or adds to it."""
        self.seq += 1
        header = {
            "type": kind, "seq": self.seq, "job_id": self.job_id, "attempt": self.attempt, "ts": time.time(),
        }  # fmt: skip
        # Texts come from exceptions and paths: a long one must not fail the job, and one may hold a password.
        texts = {name: value[:MAX_TEXT_LENGTH] for name, value in fields.items() if isinstance(value, str)}
        if "message" in texts:
            texts["message"] = self.settings.redact(texts["message"])[:MAX_TEXT_LENGTH]
        event = EVENT.validate_python({**fields, **texts, **header}, context=ROUNDED)
        for sink in self.sinks:
            sink.emit(event, result)

    def warn(self, message: str, rank: int | None = None) -> None:
        """Emit a warning, of the member of a group that has `rank`."""
        self.emit("warning", {"message": message, "rank": rank})
