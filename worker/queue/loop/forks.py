"""Forks of an idle worker for the extras of jobs."""

import structlog

from worker.jobs.worker_context import WorkerContext
from worker.queue.maintenance.late_extras import LateExtras
from worker.queue.standby import Standby
from worker.queue.work_horse import WorkHorse


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
