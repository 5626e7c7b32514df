"""Every Redis key: the names of those of the service and of RQ, and a table of who writes and reads them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

QUARANTINE: Final = "preflight:quarantine"
"""Hash of the entries of queues that cannot be jobs: id -> JSON of the reason."""

TOTALS: Final = "preflight:totals"
"""Hash of counters over all jobs: name -> number; see `preflight.events.counters`."""

DELETED: Final = "preflight:deleted"
"""Sorted set of the ids of deleted jobs, which are not trained again -> when they were deleted, seconds."""

FAILING: Final = "preflight_failing"
"""Field of RQ's hash of a worker: its parts that have failed and are tried again; see `worker.state.supervision`."""

GROUP: Final = "preflight_group"
"""Field of RQ's hash of a worker: the job in whose group it has a seat."""

LIMITS: Final = "preflight_limits"
"""Field of RQ's hash of a worker: its limits on jobs, as JSON; see `worker.admission.limits`."""

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


def datasets(queue: str) -> str:
    """Hash of the data sets of a queue's workers: name -> when a worker published it, seconds since the epoch."""
    return f"preflight:datasets:{queue}"


def catalog(queue: str) -> str:
    """Hash of the workers' entries for data sets and models: `dataset NAME` or `model NAME` -> JSON."""
    return f"preflight:catalog:{queue}"


def deletions(queue: str) -> str:
    """Hash of requests to delete a job: job id -> JSON of a `preflight.client.delete.Deletion`."""
    return f"preflight:deletions:{queue}"


def imports(queue: str) -> str:
    """Hash of the open imports of a queue: data set -> id of its import; see `worker.imports.records`."""
    return f"preflight:imports:{queue}"


def import_state(job_id: str) -> str:
    """Return the key of the state of an import, as JSON; it has its lease and its `cancel` key as a job has."""
    return f"preflight:{{{job_id}}}:import"


def offers(queue: str) -> str:
    """Hash of the groups of a queue that have free seats: job id -> offer; see `worker.features.groups.seats`."""
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


def dataset(job_id: str) -> str:
    """Version of the imported data set that all attempts of a job use, as `photos@2`."""
    return f"preflight:{{{job_id}}}:dataset"


def notes(job_id: str) -> str:
    """Hash of the note and the tags that people gave a job; see `preflight.client.notes`."""
    return f"preflight:{{{job_id}}}:notes"


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
    """Hash of a rate limit's settings; RQ has it since 3.0, next to `:allowed` and `:rate_limited`."""
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


def rq_workers(queue: str) -> str:
    """Return the key of the names of the workers of a queue; RQ names them so."""
    return f"rq:workers:{queue}"


def rq_worker(name: str) -> str:
    """RQ's hash of a worker."""
    return f"rq:worker:{name}"


def rq_worker_executions(name: str) -> str:
    """Set of a worker's executions, each as `job:execution`; RQ has it since 3.0."""
    return f"rq:worker:{name}:executions"


def rq_queue(queue: str) -> str:
    """RQ's list of the ids of the jobs that wait in a queue."""
    return f"rq:queue:{queue}"


Kind = Literal["string", "hash", "list", "set", "zset", "stream", "any"]

OF_JOB: Final = "state_ttl after the job's last update"
OF_RQ: Final = "RQ's result_ttl or failure_ttl after the job's end"
NONE: Final = "none: shared by all jobs"


@dataclass(frozen=True, slots=True)
class Key:
    """One kind of key."""

    name: str
    """Pattern of the key, with a part of `DIFFERENT` in braces where keys differ."""
    kind: Kind
    writer: str
    reader: str
    bound: str
    """Limit on the size of one read."""
    ttl: str

    def matches(self, key: str) -> bool:
        """Whether a key is one of this kind."""
        pattern = re.escape(self.named(dict.fromkeys(DIFFERENT, "\0"))).replace("\0", ".*")
        return re.fullmatch(pattern, key, re.DOTALL) is not None

    def named(self, values: Mapping[str, str]) -> str:
        """Return the key for the `DIFFERENT` parts."""
        return self.name.format(**values)


DIFFERENT: Final = ("job", "rq_id", "queue", "worker", "execution", "limit", "number")
"""Parts of the names of keys."""
KEYS: Final = (
    # --- of the service, shared by all jobs
    Key("preflight:quarantine", "hash", "worker", "worker, quarantine",
        "1 KiB a name, 16 KiB an entry, 1,000 a page", NONE),
    Key("preflight:totals", "hash", "worker, web", "web", "256 KiB a value", NONE),
    Key("preflight:maintenance:{queue}", "string", "worker", "worker", "its time to live alone", "600 s"),
    Key("preflight:maintainer:{queue}:all:{number}", "string", "worker", "worker", "512 bytes",
        "25 s; no longer one holds"),
    Key("preflight:maintainer:{queue}:unscheduled:{number}", "string", "worker", "worker", "512 bytes",
        "25 s; no longer one holds"),
    Key("preflight:ended:{queue}", "hash", "worker", "worker", "256 bytes an id, 32 a status, 250 a step", NONE),
    Key("preflight:datasets:{queue}", "hash", "worker", "client", "5,000 fields, 128 bytes each", "1 day"),
    Key("preflight:catalog:{queue}", "hash", "worker", "web", "5,000 fields, 512 bytes each", "1 day"),
    Key("preflight:deletions:{queue}", "hash", "client, web", "worker, client, web",
        "64 bytes an id, 4 KiB a request, 50 a step", NONE),
    Key("preflight:deleted", "zset", "worker", "worker, client, web", "1 score, or 1,000 ids", NONE),
    Key("preflight:imports:{queue}", "hash", "worker, web", "worker, web", "64 bytes a field, 100 fields", NONE),
    Key("preflight:offers:{queue}", "hash", "worker", "worker", "64 bytes a job, 40 an offer, 5,000 offers", "120 s"),
    Key("preflight:idle:{queue}", "zset", "worker", "worker", "their number; of 6 s", "60 s"),
    # --- of one job
    Key("preflight:{{{job}}}:events", "stream", "worker, web", "client, web", "256 KiB a value, 1,000 records", OF_JOB),
    Key("preflight:{{{job}}}:lifecycle", "stream", "worker, web", "client, web",
        "256 KiB a value, 1,000 records", OF_JOB),
    Key("preflight:{{{job}}}:state", "hash", "worker, web", "worker, client, web", "256 KiB a field", OF_JOB),
    Key("preflight:{{{job}}}:fence", "hash", "worker", "worker", "9 digits a number, 16 KiB the failure", OF_JOB),
    Key("preflight:{{{job}}}:lease", "string", "worker", "worker, client", "512 bytes", "12 s; no longer one holds"),
    Key("preflight:{{{job}}}:cancel", "hash", "producer, web", "worker", "whether it is there", OF_JOB),
    Key("preflight:{{{job}}}:result", "string", "worker", "worker, client, web", "256 KiB", OF_JOB),
    Key("preflight:{{{job}}}:accepted", "hash", "worker", "worker, web", "5,000 fields, 256 bytes each",
        "30 days or more"),
    Key("preflight:{{{rq_id}}}:alias", "string", "worker, web", "worker, client, web", "64 bytes", OF_JOB),
    Key("preflight:{{{job}}}:plan", "string", "worker", "worker", "16 KiB", OF_JOB),
    Key("preflight:{{{job}}}:dataset", "string", "worker", "worker", "128 bytes", OF_JOB),
    Key("preflight:{{{job}}}:notes", "hash", "client, web", "client, web", "256 KiB a field", "30 days"),
    Key("preflight:{{{job}}}:import", "string", "worker, web", "worker, web", "16 KiB", OF_JOB),
    Key("preflight:{{{job}}}:group", "hash", "worker", "worker", "5,000 fields, 4 KiB a message, 16 KiB a request",
        "120 s"),
    # --- RQ's, of a queue or of all
    Key("rq:queue:{queue}", "list", "producer, worker", "worker, client, web", "1 KiB an id", NONE),
    Key("rq:queue:{queue}:intermediate", "list", "worker", "worker, client, web", "1 KiB an id, 5,000 ids", NONE),
    Key("rq:wip:{queue}", "zset", "worker", "worker, client, web", "1 KiB an entry, 5,000 entries", NONE),
    Key("rq:finished:{queue}", "zset", "worker", "worker, client, web", "1 KiB an entry, 250 a page", NONE),
    Key("rq:failed:{queue}", "zset", "worker", "worker, client, web", "1 KiB an entry, 250 a page", NONE),
    Key("rq:canceled:{queue}", "zset", "worker, web", "worker, client, web", "1 KiB an entry, 250 a page", NONE),
    Key("rq:scheduled:{queue}", "zset", "producer, worker", "worker, client, web",
        "256 bytes an id, 1,000 a step", NONE),
    Key("rq:deferred:{queue}", "zset", "producer, worker", "worker, client, web", "1 KiB an entry, 250 a page", NONE),
    Key("rq:ready:{queue}", "zset", "producer", "worker", "256 bytes an id, 1,000 a step", NONE),
    Key("rq:scheduler-lock:{queue}", "string", "worker, RQ", "worker", "512 bytes",
        "10 s; none longer than 122 s holds"),
    Key("rq:queues", "set", "producer, worker", "RQ's tools", "nothing", NONE),
    Key("rq:workers", "set", "worker", "RQ's tools", "nothing", NONE),
    Key("rq:workers:{queue}", "set", "worker", "worker, client, web", "1 KiB a name, 250 a page", NONE),
    Key("rq:suspended", "any", "RQ's tools", "worker, client, web", "whether it is there", NONE),
    Key("rq:rl-keys", "set", "producer, worker", "worker", "256 bytes a name, 1,000 a page", NONE),
    Key("rq:rl:{limit}", "hash", "producer, worker", "worker", "9 digits", NONE),
    Key("rq:rl:{limit}:allowed", "zset", "producer, worker", "worker", "1,000 ids a step", NONE),
    Key("rq:rl:{limit}:rate_limited", "zset", "producer, worker", "worker", "256 bytes an id, 1,000 a step", NONE),
    # --- RQ's, of one job, execution or worker
    Key("rq:job:{rq_id}", "hash", "producer, worker", "worker, client, web",
        "64 fields, 256 KiB each, 1 MiB unpacked", OF_RQ),
    Key("rq:job:{rq_id}:dependents", "set", "producer", "worker", "256 bytes an id, 50 a page", OF_RQ),
    Key("rq:job::{rq_id}:dependencies", "set", "producer", "worker", "1,000 ids", OF_RQ),
    Key("rq:executions:{rq_id}", "zset", "worker", "worker", "how many last", "150 s"),
    Key("rq:execution:{rq_id}:{execution}", "hash", "worker", "worker", "512 bytes", "90 s"),
    Key("rq:results:{rq_id}", "stream", "worker", "client", "256 KiB a value, 1 record", OF_RQ),
    Key("rq:worker:{worker}", "hash", "worker", "web", "256 KiB a field", "105 s"),
    Key("rq:worker:{worker}:executions", "set", "worker", "RQ's tools", "nothing", "150 s"),
    Key("rq:pubsub:{worker}", "any", "RQ's tools", "worker", "4 KiB a command, 100 a step", "a channel"),
)  # fmt: skip
"""Writers and readers of each key, how much of it is read at once, and for how long it is kept. No content is trusted,
regardless of the named writer: others may have the same rights. The fuzzer takes its targets from here, and
tests/integration/preflight/redis/test_key_table.py fails for a key that is used and is not in it."""


def kind_of(key: str) -> Key | None:
    """Return the row of a key; None for one that is not in the table."""
    rows = [row for row in KEYS if row.matches(key)]
    return max(rows, key=lambda row: len(row.name), default=None)
