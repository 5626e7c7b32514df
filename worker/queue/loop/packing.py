"""Packing of one worker: when it may take the next job, and companions that run jobs at the same time as its own.

A companion is a fork of the worker that takes jobs like any worker. It begins when a job waits that is worth running
together with the others, and ends when none has come for a while; so an idle worker is one process.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
from redis.exceptions import RedisError

from preflight.queue.untrusted_job import fetch_job
from preflight.redis import keys
from preflight.redis.replies import text
from preflight.wire import parse_job
from worker.admission.admit import AdmittedJob
from worker.jobs.worker_context import WorkerContext
from worker.queue.work_horse import WorkHorse, describe_exit
from worker.state.packing.arbiter import Arbiter, Candidate, Permission
from worker.state.packing.ledger import Entry
from worker.state.signals import FORWARDED

LINGER_SECONDS: Final = 30.0
"""Seconds without a job after which a companion ends: until then the next job begins at once."""
STOP_TIMEOUT: Final = 30.0
"""Seconds that a companion gets to save its job when the worker stops."""
JOIN_LOOK_SECONDS: Final = 0.05
"""Seconds between two looks whether companions have ended."""
CLAIMING_SECONDS: Final = 10.0
"""Seconds within which a job that was taken has its lease."""
SEEN_SECONDS: Final = 3.0
"""Seconds for which a lease that existed counts as existing; the lease itself lasts 12 s."""
TURN_LOOK_SECONDS: Final = 0.25
"""Seconds between two looks whether the turn is free, which cost no command of Redis."""
MOST_WORKERS: Final = 250
"""Most workers of a queue that are looked at."""
MAX_ID_BYTES: Final = 256


class Packing:
    """The part of one worker that lets jobs of its host share the processors."""

    def __init__(
        self, worker: WorkerContext, run_companion: Callable[[], None] | None, companion_of: "Packing | None" = None
    ) -> None:
        """Pack the jobs of `worker`; None for `run_companion`: it starts no companions.

        A companion keeps the ledger of the worker that started it: a limit changed meanwhile would lead to another.
        """
        settings = worker.settings
        self._connection = worker.connection
        self._queue = worker.queue
        self._stop = worker.stop
        self._run_companion = run_companion
        self._is_companion = companion_of is not None
        lender = None if companion_of is None else companion_of.arbiter
        self.arbiter: Arbiter | None = (
            Arbiter(
                settings.state_dir,
                worker.name,
                policy=settings.packing,
                most_jobs=settings.max_jobs,
                runs=self._runs,
                ledger=None if lender is None else lender.ledger,
            )
            if settings.packs
            else None
        )
        """Decides which jobs may begin; None: one job runs at a time, and others of the host are not looked at."""
        self._name, self._host = worker.name, keys.rq_worker(f"{socket.gethostname()}.")
        self._strangers, self._strangers_until = False, 0.0
        """Whether workers of this host train on their own, and until when that counts, by the monotonic clock."""
        self._seen_until: dict[str, float] = {}
        """Jobs of other workers that had their lease, and until when that counts, by the monotonic clock."""
        self._turn: int | None = None
        self._had_turn = False
        """Whether this worker has had the turn since it last left it to one that waited."""
        self._companions: list[WorkHorse] = []
        self._idle_since = time.monotonic()
        self.waits = False
        """Whether a job of the queue had to wait at the last look."""
        self._log = structlog.get_logger("preflight")

    @property
    def has_companions(self) -> bool:
        """Whether any companion runs."""
        return bool(self._companions)

    @property
    def is_spent(self) -> bool:
        """Whether this is a companion that nobody needs any more."""
        return self._is_companion and time.monotonic() - self._idle_since >= LINGER_SECONDS

    def may_take(self, seconds: float) -> bool:
        """Whether this worker may take the next job now; else waits up to `seconds` before it returns.

        One worker of the host looks at a time: it keeps the turn until `free_turn`. Raises `RedisError`.
        """
        self.waits = False
        if self.arbiter is None:
            return True
        if not self._take_turn(self.arbiter, seconds):
            self.waits = True  # the worker that has it may take a job, or find that one has to wait
            return False
        if not self.is_shared or self._allowed(self.arbiter) is not None:
            return True
        self.free_turn()
        self._stop.sleep(seconds)
        return False

    def _take_turn(self, arbiter: Arbiter, seconds: float) -> bool:
        """Wait up to `seconds` for the turn; returns whether this worker has it."""
        if self._had_turn and arbiter.is_awaited():  # a worker of another queue would never find the turn free
            self._stop.sleep(2 * TURN_LOOK_SECONDS)
        self._had_turn = False
        deadline = time.monotonic() + seconds
        while (turn := arbiter.turn()) is None:
            left = deadline - time.monotonic()
            if left <= 0 or self._stop():
                return False
            self._stop.sleep(min(TURN_LOOK_SECONDS, left))
        self._turn, self._had_turn = turn, True
        return True

    @property
    def is_shared(self) -> bool:
        """Whether other workers run jobs here."""
        return self.arbiter is not None and bool(self.arbiter.others())

    def may_sit(self) -> bool:
        """Whether a seat in a group may be taken while others run here: only where all of them train in groups."""
        return self.arbiter is not None and all(entry.is_group for entry in self.arbiter.others())

    def free_turn(self) -> None:
        """Let another worker look for a job; may be called again."""
        if self._turn is not None:
            os.close(self._turn)
            self._turn = None

    def begin(self, job: AdmittedJob) -> None:
        """Enter in the ledger a job that was taken."""
        if self.arbiter is None:
            return
        candidate = Candidate.of(job.request)
        permission = None
        with suppress(RedisError):  # it was taken, and begins without an answer, too
            permission = self.arbiter.decide(candidate, self._has_strangers)
        self.arbiter.begin(job.job_id, job.rq_job.id, candidate, permission or self.arbiter.unmeasured())
        self.free_turn()

    def begin_seat(self) -> None:
        """Enter in the ledger a seat in a group, which takes all processors: its plan was measured with them."""
        if self.arbiter is not None:
            self.arbiter.begin("", "", Candidate(is_group=True), self.arbiter.unmeasured())
            self.free_turn()

    def end(self) -> None:
        """Remove the job or the seat from the ledger."""
        self.free_turn()
        if self.arbiter is not None:
            self.arbiter.end()
        self._idle_since = time.monotonic()

    def touch(self) -> None:
        """Show the other workers of the host that this one runs."""
        if self.arbiter is not None:
            self.arbiter.touch()

    def grow(self) -> None:
        """Start a companion where the next job may begin while this worker is busy; raises `RedisError`."""
        arbiter = self.arbiter
        if arbiter is None or self._run_companion is None or self._stop():
            return
        if len(self._companions) + 1 >= arbiter.most_jobs:
            return
        if len(arbiter.running()) <= len(self._companions) or self._connection.exists(keys.RQ_SUSPENDED):
            return  # a companion is idle, and takes the job
        if self._allowed(arbiter) is None:
            return
        horse = WorkHorse("", self._run_companion, self._stop, lambda: True, lambda: None, timeout=-1)
        try:
            horse.start()
        except OSError as error:
            self._log.warning("fork_retry", message=f"the system starts no process ({error.strerror})")
            return
        self._companions.append(horse)

    def reap(self) -> bool:
        """Collect companions that have ended; returns whether one of them died."""
        died = False
        for horse in [*self._companions]:
            status = horse.wait(0)
            if status is None:
                continue
            self._companions.remove(horse)
            if status != 0 and not self._stop():
                died = True
                self._log.error(
                    "worker_killed", message=f"a worker process ended: {describe_exit(status)}; its job is reclaimed"
                )
        return died

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the companions."""
        for horse in self._companions:
            horse.signal(number)

    def forward_stop(self) -> None:
        """Ask the companions to stop."""
        self.signal(FORWARDED)

    def join(self, *, burst: bool) -> None:
        """Wait until the companions have ended; with `burst` until the queue is empty for them, too."""
        deadline = time.monotonic() + STOP_TIMEOUT
        if not burst and not self._stop():
            self.forward_stop()  # this worker ends for another reason
        while self._companions:
            if burst and not self._stop():
                deadline = time.monotonic() + STOP_TIMEOUT
            elif time.monotonic() >= deadline:
                self.signal(signal.SIGKILL)
            self.reap()
            time.sleep(JOIN_LOOK_SECONDS)

    def _runs(self, entry: Entry) -> bool:
        """Whether the job of another worker still runs: a frozen supervisor loses its lease, and then holds up nobody.

        Raises `RedisError`.
        """
        if not entry.job_id or time.time() - entry.began < CLAIMING_SECONDS:
            return True
        now = time.monotonic()
        if now >= self._seen_until.get(entry.job_id, 0.0):  # each look for a job asks several times
            self._seen_until = {job_id: until for job_id, until in self._seen_until.items() if until > now}
            if not self._connection.exists(keys.lease(entry.job_id)):
                return False
            self._seen_until[entry.job_id] = now + SEEN_SECONDS
        return True

    def _has_strangers(self) -> bool:
        """Whether workers of this host and queue are busy that share no state directory with this one.

        Raises `RedisError`.
        """
        now = time.monotonic()
        if now >= self._strangers_until and self.arbiter is not None:
            known = {keys.rq_worker(name) for name in (self._name, *(each.name for each in self.arbiter.running()))}
            _, found = self._connection.sscan(keys.rq_workers(self._queue.name), count=MOST_WORKERS)
            here = [key for key in map(text, found[:MOST_WORKERS]) if key.startswith(self._host) and key not in known]
            self._strangers = any(text(self._connection.hget(key, "state")) == "busy" for key in here)
            self._strangers_until = now + SEEN_SECONDS
        return self._strangers

    def _allowed(self, arbiter: Arbiter) -> Permission | None:
        """Return the permission to begin the next job of the queue; None: it has to wait, or there is none."""
        raw_id: object = self._connection.lindex(self._queue.key, 0)
        if not isinstance(raw_id, bytes) or len(raw_id) > MAX_ID_BYTES:
            return None if raw_id is None else arbiter.unmeasured()  # a damaged one is quarantined
        permission = arbiter.decide(self._candidate(raw_id), self._has_strangers)
        self.waits = permission is None
        return permission

    def _candidate(self, raw_id: bytes) -> Candidate:
        """Return the facts of a job that waits; the worker that takes it reports its errors."""
        try:
            job = fetch_job(raw_id, self._connection)
            (request,) = job.args
            if isinstance(request, dict):
                return Candidate.of(parse_job(request, lambda _: True, lambda _: None))
        except RedisError:
            raise
        except Exception:  # noqa: S110 - any content of the queue is possible here
            pass
        return Candidate()
