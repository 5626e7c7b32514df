"""Arbiter: whether the next job may begin while others run, by processors, memory and policy."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import structlog

from preflight.container.resources import SHORT, Resources, detect
from preflight.wire import TrainJob
from training.prediction import Speeds
from worker.state.packing.division import Claim, joining
from worker.state.packing.ledger import Entry, Ledger, is_awaited, turn
from worker.state.packing.share import ProcessorShare

Policy = Literal["throughput", "latency", "off"]

LEAST_BYTES: Final = 512 << 20
"""Memory in which a job of the model `cnn` just runs (deploy/README.md)."""
UNKNOWN_BYTES: Final = 2 << 30
"""Memory that has to be free for a job that never ran here, a quarter of the container's where that is less; what it
measures itself fits into what is left then."""
GROWING: Final = 0.25
"""Share of its predicted memory that a training may still grow by: its first evaluation, its checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The next job of the queue, as far as it is known."""

    kind: str | None = None
    """Kind of job; None: the job cannot be read, and the worker that takes it refuses it."""
    is_group: bool = False
    """Whether several workers train it: it takes all processors of each."""
    init_from: str | None = None
    """Model that it starts from: a job that runs has none yet."""

    @classmethod
    def of(cls, job: TrainJob) -> "Candidate":
        """Return the candidate for a request."""
        spec = job.spec()
        kind = f"{spec.model} {spec.dataset} {spec.batch_size}{' deterministic' if spec.deterministic else ''}"
        return cls(kind=kind, is_group=job.workers != 1, init_from=job.init_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """Permission for a job to begin, and the facts that it rests on."""

    beside: tuple[str, ...] = ()
    """Ids of the jobs that run already."""
    together: float | None = None
    """Speed of all at the same time, relative to one after the other; None: the job runs alone."""
    most: int
    """Threads that the job can use, as far as that is known."""
    speeds: Speeds = ()
    """Speeds of its kind of job, where that ran here before."""
    memory_bytes: int


class Arbiter:
    """Decides for one worker when it may take a job, and keeps the share of the job that it runs."""

    def __init__(
        self, state_dir: Path, name: str, *, policy: Policy, most_jobs: int | None = None,
        look: Callable[[], Resources] = detect, runs: Callable[[Entry], bool] = lambda _: True,
        ledger: Ledger | None = None,
    ) -> None:  # fmt: skip
        """Decide for the worker `name` by `policy`; at most `most_jobs` run at a time; `look` finds the resources.

        `runs` finds, by other means than the ledger, whether the job of another worker still runs. `ledger`: that of
        the worker that started this one.
        """
        self._look = look
        self._runs = runs
        self._policy = policy
        self._most_jobs = most_jobs
        self._name = name
        self.ledger = ledger or Ledger(state_dir, look(), lambda: look().cores)
        self.share = ProcessorShare()
        """Share of the job that this worker runs."""

    @property
    def most_jobs(self) -> int:
        """Number of jobs that may run at a time here, by processors and memory."""
        found = self._look()
        limit = found.cores if self._most_jobs is None else self._most_jobs
        return max(1, min(found.cores, found.memory_bytes // LEAST_BYTES, limit))

    def others(self) -> Sequence[Entry]:
        """Return the jobs that other workers run here."""
        return [entry for entry in self.running() if entry.name != self._name]

    def running(self) -> Sequence[Entry]:
        """Return the jobs that run here, this worker's own among them."""
        return [entry for entry in self.ledger.entries() if entry.name == self._name or self._runs(entry)]

    def touch(self) -> None:
        """Show the other workers that this one runs; its job counts no more once it does not."""
        self.ledger.touch(self._name)

    def turn(self) -> int | None:
        """Take the turn to look for a job, as `ledger.turn`; without a disk to write on each worker has it."""
        try:
            return turn(self.ledger.directory)
        except OSError:
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def is_awaited(self) -> bool:
        """Whether another worker waits for the turn."""
        return is_awaited(self.ledger.directory)

    def decide(self, candidate: Candidate, has_strangers: Callable[[], bool] = lambda: False) -> Permission | None:
        """Return the permission to begin `candidate` now; None: it has to wait.

        `has_strangers`: whether workers train here that are not in the ledger. The processors that foreign processes
        hold are left to such workers, which do the same; any other neighbour shares its time with one more training.
        """
        running, found = self.running(), self._look()
        known = None if candidate.kind is None else self.ledger.known(candidate.kind)
        alone = self.unmeasured()
        most = alone.most if known is None else known.most
        memory = alone.memory_bytes if known is None or not known.memory_bytes else known.memory_bytes
        speeds = () if known is None else known.speeds
        if not running:
            return Permission(most=most, speeds=speeds, memory_bytes=memory)
        if candidate.is_group or len(running) >= self.most_jobs:
            return None
        if candidate.init_from is not None and candidate.init_from in {entry.job_id for entry in running}:
            return None
        if not self._may_join(running, is_known=known is not None) or not _fits(running, memory, found):
            return None
        claims = [entry.claim for entry in running]
        processors = _free(running, found)
        if processors < found.cores and not has_strangers():
            processors = found.cores
        division = joining(
            claims, Claim(most=most, speeds=speeds), processors, is_latency=self._policy == "latency"
        )  # fmt: skip
        if division is None:
            return None
        return Permission(
            beside=tuple(entry.job_id for entry in running), together=division.together, most=most, speeds=speeds,
            memory_bytes=memory,
        )  # fmt: skip

    def unmeasured(self) -> Permission:
        """Return the permission of a job of which nothing is known."""
        found = self._look()
        memory = max(LEAST_BYTES, min(UNKNOWN_BYTES, found.memory_bytes // 4))
        return Permission(most=found.cores, memory_bytes=memory)

    def begin(self, job_id: str, rq_id: str, candidate: Candidate, permission: Permission) -> None:
        """Enter in the ledger the job that this worker has taken; where that cannot be written, it shares nothing."""
        entry = Entry(
            name=self._name, job_id=job_id, rq_id=rq_id, number=0, kind=candidate.kind or "", most=permission.most,
            speeds=permission.speeds, memory_bytes=permission.memory_bytes, is_fixed=candidate.is_group,
            is_group=candidate.is_group, began=time.time(),
        )  # fmt: skip
        with suppress(OSError):
            lock = self.ledger.hold(self._name)
            try:
                entry = self.ledger.add(entry)
            except OSError:
                os.close(lock)  # or each job would leave a descriptor
                raise
            self.share = ProcessorShare(self.ledger, entry, permission.together, lock, self._look)
            if permission.together is not None:
                structlog.get_logger("preflight").info(
                    "job_packed", job_id=job_id, together=round(permission.together, 2), others=[*permission.beside],
                    message=f"started while {', '.join(permission.beside)} "
                    f"{'runs' if len(permission.beside) == 1 else 'run'}: together {permission.together:.2f} "
                    "times as fast as one after the other",
                )  # fmt: skip

    def end(self) -> None:
        """Remove from the ledger the job that this worker ran."""
        share, self.share = self.share, ProcessorShare()
        with suppress(OSError):
            share.release()

    def _may_join(self, running: Sequence[Entry], *, is_known: bool) -> bool:
        """Whether no job that runs wants to be alone, and one calibrates at a time at most.

        A job of a kind that ran here before finds its plan in the cache, and measures nothing when it starts.
        """
        if any(entry.is_alone for entry in running):
            return False
        starting = [entry for entry in running if entry.phase == "starting"]
        return not starting or (is_known and all(self.ledger.known(entry.kind) for entry in starting))


def _free(running: Sequence[Entry], found: Resources) -> int:
    """Return the processors that no foreign process holds; 1 where no training has counted them yet.

    The least count of the trainings is taken: counts include processes that began or ended meanwhile.
    """
    counted = [entry.foreign for entry in running if entry.foreign is not None]
    return max(1, min(found.cores, len(found.affinity) - round(min(counted)))) if counted else 1


def _fits(running: Sequence[Entry], memory_bytes: int, found: Resources) -> bool:
    """Whether a job of `memory_bytes` fits with the predicted peaks of those that run, and with the memory in use."""
    budget = SHORT * found.memory_bytes
    predicted = sum(entry.memory_bytes for entry in running)
    grows = sum(
        entry.memory_bytes * (1.0 if entry.phase == "starting" else GROWING) for entry in running
    )  # fmt: skip
    return max(predicted, (found.working_set_bytes or 0) + grows) + memory_bytes <= budget
