"""Every Redis key of the service, beside those of RQ itself."""

from typing import Final

QUARANTINE: Final = "preflight:quarantine"
"""Hash of the entries of queues that cannot be jobs: id -> JSON of the reason."""

TOTALS: Final = "preflight:totals"
"""Hash of counters over all jobs: name -> number; see `worker.events.counters`."""

CALIBRATING: Final = "preflight_calibrating"
"""Field of RQ's hash of a worker: the workload that it calibrates while the queue is empty."""

FAILING: Final = "preflight_failing"
"""Field of RQ's hash of a worker: its parts that have failed and are tried again; see `worker.ops.supervision`."""

GROUP: Final = "preflight_group"
"""Field of RQ's hash of a worker: the job in whose group it has a seat."""

RQ_SUSPENDED: Final = "rq:suspended"
"""Present, with any type, while `rq suspend` keeps the workers of all queues from taking jobs."""


def maintenance(queue: str) -> str:
    """Name of the worker that cleaned the queue's registries last; see `worker.queue.maintenance.registry_cleaner`."""
    return f"preflight:maintenance:{queue}"


def maintainer(queue: str, with_scheduler: bool, number: int) -> str:
    """Name of one of the workers that look after the queue; see `worker.queue.loop.maintainer`."""
    return f"preflight:maintainer:{queue}:{'all' if with_scheduler else 'unscheduled'}:{number}"


def ended(queue: str) -> str:
    """Hash of jobs that have ended and whose dependents are to be released: RQ's id -> RQ's status."""
    return f"preflight:ended:{queue}"


def offers(queue: str) -> str:
    """Hash of the groups of a queue that have free seats: job id -> offer; see `worker.jobs.group.seats`."""
    return f"preflight:offers:{queue}"


def idle_workers(queue: str) -> str:
    """Sorted set of the idle workers that may sit down in a group: name -> ms of Redis's clock."""
    return f"preflight:idle:{queue}"


def events(job_id: str) -> str:
    """Stream of all events of a job; capped."""
    return f"preflight:{{{job_id}}}:events"


def lifecycle(job_id: str) -> str:
    """Stream of a job's lifecycle events; never trimmed."""
    return f"preflight:{{{job_id}}}:lifecycle"


def state(job_id: str) -> str:
    """Hash of the latest value of each field of a job's events."""
    return f"preflight:{{{job_id}}}:state"


def fence(job_id: str) -> str:
    """Hash of the fence: newest attempt, its owner, deaths in a row, last event of each attempt."""
    return f"preflight:{{{job_id}}}:fence"


def lease(job_id: str) -> str:
    """Lease of the running attempt; another value at each renewal."""
    return f"preflight:{{{job_id}}}:lease"


def cancel(job_id: str) -> str:
    """Present when cancellation was requested."""
    return f"preflight:{{{job_id}}}:cancel"


def result(job_id: str) -> str:
    """JSON of a finished job's result; a job that has one does not run again."""
    return f"preflight:{{{job_id}}}:result"


def accepted(job_id: str) -> str:
    """Hash of a job's signed messages: the RQ id that carried each, when it was signed, whether its job has ended."""
    return f"preflight:{{{job_id}}}:accepted"


def alias(rq_id: str) -> str:
    """Id of a job that RQ has under another, `rq_id`; written once a worker has taken it, or with its end."""
    return f"preflight:{{{rq_id}}}:alias"


def plan(job_id: str) -> str:
    """Plan of a deterministic job for all its attempts, as JSON."""
    return f"preflight:{{{job_id}}}:plan"


def group(job_id: str) -> str:
    """Hash of the group that trains a job: its seats, their beats, and the leader's orders."""
    return f"preflight:{{{job_id}}}:group"


def rq_job(rq_id: str) -> str:
    """RQ's hash of a job."""
    return f"rq:job:{rq_id}"


def rq_dependents(rq_id: str) -> str:
    """RQ's set of the jobs that depend on a job."""
    return f"rq:job:{rq_id}:dependents"


def rq_dependencies(rq_id: str) -> str:
    """RQ's set of the jobs on which a job depends."""
    return f"rq:job::{rq_id}:dependencies"


def rq_ready(queue: str) -> str:
    """RQ's sorted set of jobs whose dependencies have ended, for the moment before they are queued; since 3.0."""
    return f"rq:ready:{queue}"


def rq_scheduler_lock(queue: str) -> str:
    """RQ's lock of the one scheduler of a queue: its name."""
    return f"rq:scheduler-lock:{queue}"


def rq_rate_limit(name: str) -> str:
    """Hash of a rate limit's settings; RQ has it since 3.0, beside `:allowed` and `:rate_limited`."""
    return f"rq:rl:{name}"


RQ_RATE_LIMITS: Final = "rq:rl-keys"
"""Set of the names of all rate limits."""


def rq_executions(rq_id: str) -> str:
    """RQ's sorted set of the executions of a job."""
    return f"rq:executions:{rq_id}"


def rq_execution(rq_id: str, execution: str) -> str:
    """RQ's hash of one execution of a job."""
    return f"rq:execution:{rq_id}:{execution}"


def rq_results(rq_id: str) -> str:
    """RQ's stream of the results of a job."""
    return f"rq:results:{rq_id}"


def rq_worker(name: str) -> str:
    """RQ's hash of a worker."""
    return f"rq:worker:{name}"


def rq_worker_executions(name: str) -> str:
    """Set of a worker's executions, each as `job:execution`; RQ has it since 3.0."""
    return f"rq:worker:{name}:executions"
