"""Idle host: processes in which an idle worker works for jobs that others lead."""

import signal
from collections.abc import Callable

from training.process.fork_server.client import ForkServer
from worker.jobs.worker_context import WorkerContext
from worker.queue.standby import Standby
from worker.queue.work_horse import WorkHorse, describe_exit


class IdleHost:
    """The `worker.jobs.hooks.Host` of one worker: one process at a time."""

    def __init__(
        self, worker: WorkerContext, standby: Standby, heartbeat: Callable[[Callable[[], None]], bool]
    ) -> None:
        """Run processes of `worker`; `heartbeat` as for `JobRunner`."""
        self._worker = worker
        self._standby = standby
        self._heartbeat = heartbeat
        self._horse: WorkHorse | None = None

    @property
    def server(self) -> ForkServer | None:
        """Server that forks the children of the processes; None: they are fresh interpreters."""
        return self._standby.server

    def prepare_idle(self) -> None:
        """Start the server for work that may come."""
        self._standby.prepare_idle()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if one runs."""
        if self._horse is not None:
            self._horse.signal(number)

    def run(self, job_id: str, work: Callable[[], None]) -> str | None:
        """Call `work` in a work-horse until it ends; return why it died, None where it ended or was asked to."""
        self._standby.prepare()
        self._horse = WorkHorse(
            job_id, work, self._worker.stop, lambda: self._heartbeat(lambda: None), self._standby.make_room, timeout=-1
        )
        try:
            status = self._horse.run()
        finally:
            self._horse = None
            self._standby.job_ended()
        if status == 0 or self._worker.stop():
            return None
        return describe_exit(status) if isinstance(status, int) else status
