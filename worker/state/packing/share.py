"""Share of a job: the processors and the memory that it has while others run at the same time."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from preflight.container.resources import Resources, detect, process_tree_bytes
from preflight.numbers import plural
from training.prediction import Speeds
from worker.state.packing.ledger import Entry, Known, Ledger
from worker.state.packing.load import LoadMeter

LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at the ledger."""
MEASURE_SECONDS: Final = 5.0
"""Seconds between two looks at the memory of the job's processes, which the kernel adds up page by page."""
LOAD_SECONDS: Final = 2.0
"""Seconds between two looks at the load: a report that is drawn for a second counts less than half a processor."""
CHANGED: Final = 0.2
"""Processors by which the load must change: each change writes the ledger."""
GREW: Final = 1.1
"""Ratio of measured to predicted memory above which the measured one counts."""
OVERHEAD_BYTES: Final = 96 << 20
"""Bytes that a job's supervisor and its worker take in addition to the training, whose own figure includes torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Threads and memory that a job needs, once its plan is chosen."""

    threads: int
    """Threads of its plan."""
    speeds: Speeds
    is_fixed: bool
    """Whether it keeps the threads that it begins with."""
    memory_bytes: int | None
    """Predicted peak of its training process; None: nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedProcessors:
    """Share of a job in the processors from now on."""

    processors: int
    total: int
    others: tuple[str, ...]
    """Jobs that have the rest."""
    together: float | None
    """Speed of all together, as in `Permission`; None where another job has come or gone."""

    def describe(self) -> str:
        """Return the share as a clause."""
        mine = f"{self.processors} of {plural(self.total, 'processor')}"
        if not self.others:
            return f"all {plural(self.total, 'processor')}: no other job runs here now"
        names = ", ".join(self.others)
        if self.together is None:
            return f"{mine}: {names} {'runs' if len(self.others) == 1 else 'run'} at the same time"
        return f"{mine}: with {names} {self.together:.2f} times as fast as one after the other"


class ProcessorShare:
    """The share of one job. Without a ledger it has all, and nothing is recorded.

    A disk that cannot be written changes nothing: the job keeps what it has.
    """

    def __init__(
        self, ledger: Ledger | None = None, entry: Entry | None = None, together: float | None = None,
        lock: int | None = None, look: Callable[[], Resources] = detect,
    ) -> None:  # fmt: skip
        """Keep the `entry` in `ledger`, whose `lock` is held; `together` as for `Permission`."""
        self._ledger = ledger
        self._entry = entry
        self._together = together
        self._lock = lock
        self._look = look
        self._next_look = 0.0
        self._next_measure = self._next_load = 0.0
        self._load = LoadMeter()
        self._told: tuple[int, tuple[str, ...]] = (0, ())
        self._peak_bytes = 0
        self._server_pid: int | None = None
        self.had_others = False
        """Whether another job ran here since `mark`."""
        self.older = () if ledger is None or entry is None else tuple(
            each.rq_id for each in ledger.entries() if each.number < entry.number
        )  # fmt: skip
        """RQ's ids of the jobs that began before this one and ran then, the oldest first."""

    @property
    def file(self) -> Path | None:
        """The file in which the training finds its processors; None: it has all."""
        return None if self._ledger is None or self._entry is None else self._ledger.processors_file(self._entry.name)

    @property
    def processors(self) -> int:
        """Processors of this job; 0: all."""
        return 0 if self._entry is None else self._entry.processors

    def others(self) -> tuple[Entry, ...]:
        """Return the other jobs that run here."""
        if self._ledger is None or self._entry is None:
            return ()
        return tuple(entry for entry in self._ledger.entries() if entry.name != self._entry.name)

    def remaining(self, found: Resources) -> Resources:
        """Return resources in which the predicted memory of other jobs counts as used."""
        others = sum(entry.memory_bytes for entry in self.others())
        if not others:
            return found
        used = max(found.working_set_bytes or 0, others + process_tree_bytes(os.getpid()))
        return replace(found, working_set_bytes=used)

    def watch(self, server_pid: int | None) -> None:
        """Count the processes of the job from now on: those of this process, and of the fork server `server_pid`."""
        self._server_pid = server_pid
        if self._entry is not None:
            self._load.look(self._processes, [entry.name for entry in self.others()])

    def begin(self, usage: Usage) -> int:
        """Record the needs of the job in the ledger; return the threads that it begins with."""
        if self._ledger is None or self._entry is None:
            return usage.threads
        memory = self._entry.memory_bytes if usage.memory_bytes is None else usage.memory_bytes + OVERHEAD_BYTES
        self._update(
            lambda entry: replace(entry, phase="training", most=usage.threads, speeds=usage.speeds, memory_bytes=memory)
        )
        self._count_load()
        threads = min(usage.threads, self.processors) if self.processors else usage.threads
        if usage.is_fixed:
            self._update(lambda entry: replace(entry, most=threads, is_fixed=True))
        else:
            known = Known(most=usage.threads, speeds=usage.speeds, memory_bytes=memory)
            with suppress(OSError):
                self._ledger.remember(self._entry.kind, known)
        return threads

    def mark(self) -> None:
        """Begin to note whether another job runs here."""
        self.had_others = bool(self.others())

    def look(self) -> SharedProcessors | None:
        """Look whether another job has come or gone; return the share of this one where it has changed."""
        now = time.monotonic()
        if self._ledger is None or self._entry is None or now < self._next_look:
            return None
        self._next_look = now + LOOK_SECONDS
        self._measure(self._ledger, self._entry, now)
        if now >= self._next_load:
            self._next_load = now + LOAD_SECONDS
            self._count_load()
        with suppress(OSError):
            self._ledger.change(lambda contents: contents)
        own = next((entry for entry in self._ledger.entries() if entry.name == self._own_name), None)
        if own is None:
            return None
        self._entry = own
        names = tuple(entry.job_id for entry in self.others())
        self.had_others |= bool(names)
        if (own.processors, names) == self._told:
            return None
        self._told = own.processors, names
        together, self._together = self._together, None
        total = self._look().cores
        return SharedProcessors(
            processors=min(own.processors or total, total), total=total, others=names, together=together
        )

    def require_alone(self) -> None:
        """Let no other job begin while this one runs."""
        self._update(lambda entry: replace(entry, is_alone=True))

    def waits_for_others(self) -> bool:
        """Whether a job that is to run alone has to wait: of several that are, the oldest goes first."""
        own = 0 if self._entry is None else self._entry.number
        return any(not each.is_alone or each.number < own for each in self.others())

    def release(self) -> None:
        """Give everything up; raises `OSError`."""
        if self._ledger is not None and self._entry is not None and self._lock is not None:
            self._ledger.release(self._entry.name, self._lock)
            self._lock = None

    @property
    def _own_name(self) -> str:
        return "" if self._entry is None else self._entry.name

    def _update(self, change: Callable[[Entry], Entry]) -> None:
        if self._ledger is not None and self._entry is not None:
            with suppress(OSError):
                self._entry = self._ledger.update(self._entry.name, change) or self._entry

    @property
    def _processes(self) -> list[int]:
        return [os.getpid(), *([] if self._server_pid is None else [self._server_pid])]

    def _count_load(self) -> None:
        """Note the processors that the job and foreign processes hold; a starting job has not counted its part yet."""
        others = self.others()
        found = self._load.look(self._processes, [entry.name for entry in others])
        if found is None or self._entry is None or any(entry.phase == "starting" for entry in others):
            return
        used = round(found.used, 2)
        foreign = round(max(0.0, found.others - sum(entry.used for entry in others)), 2)
        before = self._entry.foreign
        if before is None or max(abs(used - self._entry.used), abs(foreign - before)) >= CHANGED:
            self._update(lambda entry: replace(entry, used=used, foreign=foreign))

    def _measure(self, ledger: Ledger, entry: Entry, now: float) -> None:
        """Note the memory of the job's processes where it is more than predicted: a later job has to leave room."""
        if now < self._next_measure:
            return
        self._next_measure = now + MEASURE_SECONDS
        self._peak_bytes = max(self._peak_bytes, sum(map(process_tree_bytes, self._processes)))
        if self._peak_bytes > GREW * entry.memory_bytes:
            self._update(lambda entry: replace(entry, memory_bytes=self._peak_bytes))
            known = ledger.known(entry.kind)
            if known is not None:
                with suppress(OSError):
                    ledger.remember(entry.kind, replace(known, memory_bytes=self._peak_bytes))
