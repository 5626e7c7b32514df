"""Chores of a worker between two jobs: each says when it is due, and does a short step."""

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import structlog

from preflight.redis import keys
from worker.admission.dependents import Dependents
from worker.broker.shared_keys import RedisRetry
from worker.jobs.worker_context import WorkerContext
from worker.queue.imports.chore import ImportsChore
from worker.queue.intake import Intake
from worker.queue.loop.datasets import DatasetsChore
from worker.queue.loop.key_existence import SharedKeysWatch
from worker.queue.loop.maintainer import Maintainer
from worker.queue.maintenance.deletions import Deletions
from worker.queue.maintenance.extras import PendingExtrasChore
from worker.queue.maintenance.janitor import Janitor
from worker.queue.maintenance.late_extras import LateExtras
from worker.queue.maintenance.reaper import Reaper
from worker.queue.maintenance.registry_cleaner import RegistryCleaner
from worker.queue.maintenance.scheduler import Scheduler
from worker.queue.standby import Standby
from worker.queue.work_horse import WorkHorse
from worker.state.supervision import Supervisor, is_outage

MAX_FAILURES_LENGTH: Final = 500


def fork_for_extras(worker: WorkerContext, standby: Standby, job_id: str, beside: bool) -> WorkHorse | None:
    """Start a work-horse for a job's extras; None: no process could start. `beside`: the next job may run meanwhile."""
    server = None if beside else standby.server  # its children have its priority
    extras = LateExtras(worker, job_id, server, beside=beside)
    horse = WorkHorse(job_id, extras.run, worker.stop, lambda: True, standby.make_room, timeout=-1)
    try:
        horse.start()
    except OSError as error:
        structlog.get_logger("preflight").warning(
            "fork_retry",
            job_id=job_id,
            message=f"the extras of a job wait, as no process could be started: {error.strerror}",
        )
        return None
    return horse


class Chore(Protocol):
    """Something to do between two jobs."""

    def due(self) -> bool:
        """Whether it is time for a step."""
        ...


class Chores:
    """The chores of one worker."""

    def __init__(
        self, worker: WorkerContext, standby: Standby, intake: Intake, retry: RedisRetry, parts: Supervisor, *,
        with_scheduler: bool, is_companion: bool = False,
    ) -> None:  # fmt: skip
        """Look after the queue of `worker`; `with_scheduler`: enqueue its scheduled jobs, too.

        `parts` retries a chore that fails, later each time; the worker's record shows which ones fail.
        """
        self._parts = parts
        self._shown_failures = ""
        self._connection = connection = worker.connection
        self._worker_key = keys.rq_worker(worker.name)
        self._retry = retry
        self._standby = standby
        self.maintainer = Maintainer(connection, worker.queue, worker.name, with_scheduler=with_scheduler)
        self.shared_keys = SharedKeysWatch(connection, retry)
        self.reaper = Reaper(connection, worker.queue, intake.quarantine_poison)
        self.cleaner = RegistryCleaner(connection, worker.queue, worker.name, ttl=worker.settings.state_ttl)
        self.dependents = Dependents(connection, worker.queue, worker.settings)
        self.deletions = Deletions(connection, worker.queue, worker.settings)
        self.scheduler = Scheduler(connection, worker.queue, worker.name, enabled=with_scheduler)
        self.janitor = Janitor(worker.settings)
        self.datasets = DatasetsChore(connection, worker.queue.name, worker.name, worker.settings)
        self.imports = ImportsChore(
            connection, worker.queue.name, worker.settings, worker.name, is_companion=is_companion
        )
        self.extras = PendingExtrasChore(worker.settings, partial(fork_for_extras, worker, standby))

    def step(self, exist: int) -> bool:
        """Take a step of each chore that is due; return whether there is something to maintain.

        `exist` counts the maintainer's watched keys. Raises `redis.exceptions.RedisError`.
        """
        has_work = self.maintain(exist)
        self.show_failures()
        if self.maintainer.is_active:
            self._do((self.shared_keys, self._watch_shared_keys))
        self._do(
            (self.cleaner, self.cleaner.step), (self.janitor, self.janitor.step), (self.extras, self.extras.step),
            (self.datasets, self.datasets.step), (self.deletions.files, self.deletions.files.step),
            (self._standby, self._standby.step), (self.imports, self.imports.step),
        )  # fmt: skip
        return has_work

    def maintain(self, exist: int, *, running: str | None = None) -> bool:
        """Maintain the queue, if this worker is a maintainer; it runs the job `running`. Return and raise as `step`."""
        has_work = self._parts.step("Maintainer", partial(self.maintainer.look, exist), False, passes=is_outage)
        if has_work:
            self._do(
                (self.reaper, partial(self._reap, running)), (self.scheduler, self.scheduler.step),
                (self.dependents, self.dependents.step), (self.deletions, self.deletions.step),
            )  # fmt: skip
        return has_work

    def look_after_imports(self, *, opened: bool) -> None:
        """Take a step of the imports, if due, while a job runs; `opened`: their key exists. Raises as `step`."""
        self.imports.note(opened=opened)
        self._do((self.imports, partial(self.imports.step, busy=True)))

    def _do(self, *chores: tuple[Chore, Callable[[], None]]) -> None:
        """Take the steps that are due; a bug in a chore must not keep jobs waiting."""
        for chore, step in chores:
            self._parts.step(type(chore).__name__, partial(self._take, chore, step), None, passes=is_outage)

    def _take(self, chore: Chore, step: Callable[[], None]) -> None:
        if chore.due():
            self._retry.repair(step)

    def show_failures(self) -> None:
        """Write into the worker's record which of its parts fail, where that has changed; raises `RedisError`."""
        found = self._parts.failing()
        if found != self._shown_failures:
            if found:
                self._connection.hset(self._worker_key, keys.FAILING, found[:MAX_FAILURES_LENGTH])
            else:
                self._connection.hdel(self._worker_key, keys.FAILING)
            self._shown_failures = found

    def remain(self, seconds: float) -> bool:
        """Whether a worker that ends with the queue has something to do yet; waits for extras, at most `seconds`."""
        return self.cleaner.due() or self.extras.remain(seconds) or self.imports.remain(seconds)

    def release(self) -> None:
        """Let other workers maintain the queue instead of this one; raises `redis.exceptions.RedisError`."""
        self.scheduler.stop()
        self.maintainer.release()

    def stop(self) -> None:
        """End the processes of the chores."""
        self.extras.stop()
        self.imports.stop()

    def _watch_shared_keys(self) -> None:
        self.shared_keys.step()
        if self.shared_keys.has_rate_limits:
            self.scheduler.fill_rate_limits()

    def _reap(self, running: str | None) -> None:
        self._retry.rename_wrong_types()  # producers need these keys, too
        self.reaper.check(own=running)
