"""One Redis, its producers and workers, the faults, and the check of every job's outcome.

**Every accepted job** (`enqueue` returned, or the outbox enqueued it again) **ends exactly once, with a reason**:

- its last lifecycle event is `training_done`, `job_failed` with a reason, or `job_cancelled`; RQ's hash is gone or
  says finished, failed, canceled or stopped; the state agrees;
- `training_done` is published at most once, and only a further submission of the id adds events after it; failures that
  are not retried are published at most once per submission, and where a process was killed or cut off, once per
  attempt: one that dies between publishing and recording its failure is followed by another;
- RQ holds at most one result per submission;
- the model on disk is that of the result;
- it is in none of: queue, intermediate queue, started registry, executions, scheduled registry;
- where it repeats, its next run has ended, too; where it depends on another job, it has ended unless that one was
  cancelled, for which RQ lets it wait for ever.

**The weaker rule** holds for jobs that an emptied or restored Redis may have lost, and for those with a corrupted key:
they may end in any way, more than once or never, but must not stay in queue, intermediate queue or started registry.
Where one of these three was corrupted, it holds for all jobs; where a clock was wrong, for those that wait for a time.
A job enqueued with `ensure=True` and lost by an emptied Redis must still end.

**At any time**: no worker exits unless it was terminated or killed. **After the storm**: the next plain job finishes,
and every key of an ended job has a time to live.
"""

import hashlib
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import stages
from faulty_redis import Fault, Role, Shared, Traps
from forked_worker import ForkedWorker
from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rq import Queue, Repeat, Retry
from rq.command import send_stop_job_command
from rq.job import Dependency
from rq.serializers import JSONSerializer
from rq.suspension import resume, suspend
from stages import BEHAVIOURS, Behaviour
from support.redis.garbage import RAW, VALUES, all_keys, corrupt

from preflight import Client
from preflight.errors import InvalidConfig
from preflight.redis import keys
from preflight.redis.replies import text
from preflight.wire import FUNCTION, AnyEvent, JobFailed, TrainJob
from training.artifacts.model_dir import MODEL
from worker.config.settings import Settings

SNAPSHOT: Final = """
local found = {}
for number, key in ipairs(redis.call('KEYS', '*')) do
  found[number] = {key, redis.call('PTTL', key), redis.call('DUMP', key)}
end
return found
"""
"""All keys at one moment, as Redis saves them: (key, ttl in ms, content)."""
DRAINED_WITHIN: Final = 15.0
"""Seconds in which healthy workers bring every job to its end; usually one."""
PLAIN_WITHIN: Final = 10.0
"""Seconds in which a plain job is finished; usually a tenth of one."""
STOPS_WITHIN: Final = 10.0
RETRIED: Final = ("artifact_error", "child_failed")
"""Reasons of failures that RQ's retries are spent on."""
ENDED: Final = ("finished", "failed", "cancelled")
OVER: Final = ("finished", "failed", "canceled", "stopped", "")
MOST_WORKERS: Final = 3
FUZZED: Final = [row for row in keys.KEYS if row.ttl != "a channel" and row.name != keys.RQ_SUSPENDED]
"""What is corrupted: all keys but the channel, which `command` has, and the one that suspends all workers."""
OF_JOBS: Final = (b"preflight:{", b"rq:job:", b"rq:results:", b"rq:execution")
"""How the keys of jobs begin."""
PARTS: Final = re.compile(r"[:{}]+")


@dataclass(slots=True)
class Submitted:
    """An accepted job."""

    id: str
    behaviour: Behaviour
    ensured: bool
    submissions: int = 1
    lost: bool = False
    """Whether Redis may have lost data of it."""
    corrupted: bool = False
    """Whether one of its keys was overwritten."""
    endless: bool = False
    """Whether its producer asked for a result without a time to live."""
    repeats: bool = False
    """Whether it runs again when it has finished."""
    parent: "Submitted | None" = None
    """The job that it depends on."""


@dataclass(frozen=True, slots=True)
class Options:
    """RQ's options of a job."""

    result_ttl: int | None = None
    failure_ttl: int | None = None
    ttl: int | None = None
    retries: int = 0
    interval: int = 0
    """Seconds before a retry."""
    at_front: bool = False
    delay: int = 0
    """Seconds before it is queued."""
    repeats: int = 0
    depends: bool = False
    """Whether it depends on the newest job, and runs after its failure, too."""


class World:
    """Redis, producers and workers of one example."""

    def __init__(self, url: str, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        self.settings = Settings(
            redis_url=url, data_dir=directory / "data", artifact_dir=directory / "artifacts",
            cache_dir=directory / "cache", state_dir=directory / "state", report="off", log_format="text",
            log_level="warning", standby="off",  # which would import torch in each of many short lives
            group="on", gather_seconds=1,
        )  # fmt: skip
        self.connection: Redis = Redis.from_url(url)
        self.connection.config_set("maxmemory", 0)
        self.connection.flushall()
        self.client = Client(url, outbox=directory / "outbox")
        self.queue = Queue("preflight", connection=self.connection, serializer=JSONSerializer)
        self.shared = Shared(8)
        self.workers: list[ForkedWorker] = []
        self.jobs: dict[str, Submitted] = {}
        self.history: list[str] = []
        self.disturbed = False
        """Whether anything was killed, stopped or cut off."""
        self._clock_was_wrong = False
        self._snapshot: list[tuple[bytes, int, bytes]] = []
        self._began = time.monotonic()

    def note(self, what: str) -> None:
        """Add a line to the history, which is shown with a failure."""
        self.history.append(f"{time.monotonic() - self._began:6.3f}  {what}")

    # --- producers

    def enqueue(self, behaviour: Behaviour, *, ensure: bool) -> None:
        job = self._new(behaviour, ensure=ensure)
        self.note(f"client enqueues {job.id}: {behaviour}{', ensured' if ensure else ''}")
        try:
            handle = self.client.enqueue(self._request(job), ensure=ensure)
        except (RedisError, ResponseError):
            return  # refused: not accepted
        if handle.created or ensure:
            job.lost = not handle.created
            self.jobs[job.id] = job

    def enqueue_by_rq(self, behaviour: Behaviour, options: Options) -> None:
        job = self._new(behaviour, ensure=False)
        self.note(f"RQ enqueues {job.id}: {behaviour}, {options}")
        self._enqueue_by_rq(job, options)

    def enqueue_again(self, number: int) -> None:
        """Enqueue an id again with RQ, which does not check whether it exists."""
        if (job := self._some(number)) is not None:
            self.note(f"RQ enqueues {job.id} again")
            self._enqueue_by_rq(job, Options())

    def _enqueue_by_rq(self, job: Submitted, options: Options) -> None:
        known = job.id in self.jobs
        retry = Retry(max=options.retries, interval=options.interval) if options.retries else None
        repeat = Repeat(times=options.repeats) if options.repeats else None
        parent = self._some(-1) if options.depends and not options.delay else None
        depends_on = None if parent is None else Dependency([parent.id], allow_failure=True)
        delayed = partial(self.queue.enqueue_in, timedelta(seconds=options.delay))
        try:
            (delayed if options.delay else self.queue.enqueue)(
                FUNCTION, args=(self._request(job).model_dump(mode="json", exclude_unset=True),), job_id=job.id,
                result_ttl=options.result_ttl, failure_ttl=options.failure_ttl, ttl=options.ttl, retry=retry,
                at_front=options.at_front, repeat=repeat, depends_on=depends_on,
            )  # fmt: skip
        except Exception:  # RQ raises what its parts do
            job.lost = job.lost or known  # it may have written half of it
            return
        job.submissions += known
        job.endless |= options.result_ttl == -1 or options.failure_ttl == -1
        job.lost |= options.ttl is not None  # it may expire before a worker takes it
        job.lost |= self._clock_was_wrong and bool(options.delay or options.interval)
        job.repeats, job.parent = bool(options.repeats), parent
        self.jobs[job.id] = job

    def _new(self, behaviour: Behaviour, *, ensure: bool) -> Submitted:
        return Submitted(f"j{len(self.history)}", behaviour, ensure)

    def _request(self, job: Submitted) -> TrainJob:
        return TrainJob(
            type="preflight.train.v1", dataset="digits", job_id=job.id, seed=BEHAVIOURS.index(job.behaviour)
        )

    def _some(self, number: int) -> Submitted | None:
        jobs = list(self.jobs.values())
        return jobs[number % len(jobs)] if jobs else None

    def cancel(self, number: int) -> None:
        if (job := self._some(number)) is not None:
            self.note(f"client cancels {job.id}")
            with suppress(RedisError, ResponseError):
                self.client.cancel(job.id)

    def delete(self, number: int) -> None:
        """Have a worker delete a job, which is refused unless it has ended; its id is trained no more."""
        if (job := self._some(number)) is not None:
            self.note(f"client deletes {job.id}")
            with suppress(RedisError, ResponseError, InvalidConfig):
                self.client.delete(job.id)
                job.corrupted = True  # it may be gone

    def suspend(self, *, suspended: bool) -> None:
        self.note(f"workers are {'suspended' if suspended else 'resumed'}")
        with suppress(RedisError):  # it is full
            (suspend if suspended else resume)(self.connection)

    def stop(self, number: int) -> None:
        """Send RQ's stop command."""
        if (job := self._some(number)) is not None:
            self.note(f"RQ's stop command for {job.id}")
            with suppress(Exception):  # it does not run, or is no job any more
                send_stop_job_command(self.connection, job.id, serializer=JSONSerializer)

    def command(self, command: bytes) -> None:
        """Publish a command to every worker."""
        self.note(f"command {command[:40]!r}")
        for channel in self.connection.pubsub_channels("rq:pubsub:*"):
            self.connection.publish(channel.decode() if isinstance(channel, bytes) else channel, command)

    # --- workers

    def start_worker(self, role: Role = "worker", fault: Fault = Fault.NONE, commands: int = 0) -> None:
        """Start a worker with a trap, unless there are enough."""
        if sum(worker.alive() for worker in self.workers) < MOST_WORKERS:
            self.note(f"worker {len(self.workers)} starts; {fault.name} for the {role} in {commands} commands")
            self.disturbed = self.disturbed or fault is not Fault.NONE
            traps = Traps()
            traps.set(role, fault, commands)
            self._fork(traps)

    def _fork(self, traps: Traps) -> None:
        number = len(self.workers)
        self.workers.append(ForkedWorker(self.settings, self.shared, self.directory, number, traps=traps, scaled=True))

    def _worker(self, number: int) -> ForkedWorker | None:
        alive = [worker for worker in self.workers if worker.alive()]
        return alive[number % len(alive)] if alive else None

    def trap(self, number: int, role: Role, fault: Fault, commands: int) -> None:
        if (worker := self._worker(number)) is not None:
            sent = worker.traps.sent(role)
            self.disturbed = True
            self.note(f"{fault.name} for the {role} {worker.number} in {commands} commands (it has sent {sent})")
            worker.traps.set(role, fault, commands)

    def kill(self, number: int, role: Role) -> None:
        if (worker := self._worker(number)) is None:
            return
        self.disturbed = True
        self.note(f"kill -9 of the {role} {worker.number}")
        if role == "worker":
            worker.kill()
        else:
            for process in worker.supervisors():
                with suppress(psutil.Error):
                    process.kill()

    def freeze(self, number: int, role: Role) -> None:
        """SIGSTOP a worker or a supervisor."""
        if (worker := self._worker(number)) is not None:
            self.disturbed = True
            self.note(f"SIGSTOP of the {role} {worker.number}")
            for process in worker.family()[:1] if role == "worker" else worker.supervisors():
                with suppress(psutil.Error):
                    process.suspend()

    def resume(self, number: int) -> None:
        """SIGCONT a worker and its supervisor."""
        if (worker := self._worker(number)) is not None:
            self.note(f"SIGCONT of worker {worker.number}")
            worker.resume()

    def terminate(self, number: int) -> None:
        if (worker := self._worker(number)) is not None:
            self.note(f"SIGTERM of worker {worker.number}")
            worker.terminate()

    def sleep(self, seconds: float) -> None:
        self.note(f"{seconds:g} s pass")
        time.sleep(seconds)

    def set_clock(self, seconds: int) -> None:
        """Set the system clock of all workers wrong."""
        self.note(f"clocks are wrong by {seconds} s")
        self.shared[stages.CLOCK] = seconds
        self._clock_was_wrong = True
        for job in self.jobs.values():
            job.lost = True  # one that waits for a time may do so for a day

    # --- Redis

    def empty(self) -> None:
        self.disturbed = True
        self.note("Redis is emptied")
        self.connection.flushall()
        self._lose()

    def take_snapshot(self) -> None:
        self.note("snapshot of Redis")
        self.connection.config_set("maxmemory", 0)
        found = self.connection.eval(SNAPSHOT, 0)
        self._snapshot = [(key, max(0, ttl), dump) for key, ttl, dump in found]

    def roll_back(self) -> None:
        """Restore the snapshot."""
        self.disturbed = True
        self.note(f"Redis is rolled back to {len(self._snapshot)} keys")
        self.connection.config_set("maxmemory", 0)
        pipe = self.connection.pipeline(transaction=True)
        pipe.flushall()
        for key, ttl, dump in self._snapshot:
            pipe.restore(key, ttl, dump, replace=True)
        pipe.execute()
        self._lose()

    def _lose(self) -> None:
        for job in self.jobs.values():
            job.lost = True

    def cut(self) -> None:
        """Break all connections."""
        self.disturbed = True
        self.note("connections are cut")
        for kind in ("normal", "pubsub"):
            self.connection.client_kill_filter(_type=kind, skipme=True)

    def fill(self, *, full: bool) -> None:
        """Let Redis run out of memory, or recover."""
        self.disturbed = self.disturbed or full
        self.note("Redis is full" if full else "Redis has room")
        self.connection.config_set("maxmemory", 1 if full else 0)

    def garbage(self, which: int, how: int) -> None:
        """Corrupt a key that exists, or could."""
        names = sorted({*all_keys(self.connection), *self._names()})
        key = names[which % len(names)]
        self.note(f"garbage in {key.decode()}: {corrupt(self.connection, key, how)}")
        self._blame(key.decode(errors="replace"))

    def _names(self) -> list[bytes]:
        """Return keys of jobs and of the queue that may not exist yet."""
        workers = sorted(text(key).removeprefix(keys.rq_worker("")) for key in all_keys(self.connection, "rq:worker:*"))
        jobs = [*list(self.jobs)[-2:], "nobodys"]
        names = {
            row.named({
                "job": job, "rq_id": job, "queue": self.queue.name, "worker": worker, "execution": "e", "limit": "few",
                "number": str(number),
            })
            for row in FUZZED for job in jobs for worker in [*workers[:2], "nobody"] for number in range(3)
        }  # fmt: skip
        return [name.encode() for name in sorted(names)]

    def offer(self, which: int) -> None:
        """Have idle workers find an offer of seats, by whoever can write the key."""
        job = [*self.jobs, "nobodys"][which % (len(self.jobs) + 1)]
        value = (b"1 1 short", b"1 1 open", b"x", b"\xff", b"1 " + b"9" * 30 + b" short", b"1" * 14 + b" 2 short")[
            which % 6
        ]
        self.note(f"an offer of {job}: {value!r}")
        with suppress(ResponseError):  # full, or another type
            self.connection.hset(keys.offers(self.queue.name), job, value)

    def enqueue_garbage(self, which: int) -> None:
        """Put into the queue, or among the scheduled jobs, what is no job."""
        value = VALUES[which % len(VALUES)]
        self.note(f"garbage in the queue: {value[:20]!r}")
        with suppress(ResponseError):
            if which // len(VALUES) % 2:
                self.connection.zadd(self.queue.scheduled_job_registry.key, {value: 0})
            else:
                self.connection.rpush(self.queue.key, value)

    def _blame(self, key: str) -> None:
        """Note whose key was corrupted."""
        queue = self.queue
        everybody = key in (
            queue.key, queue.intermediate_queue_key, queue.started_job_registry.key, queue.scheduled_job_registry.key,
            keys.ended(queue.name), keys.rq_ready(queue.name),
        )  # fmt: skip
        for job in self.jobs.values():
            if everybody or job.id in {part.partition("-repeat-")[0] for part in PARTS.split(key)}:
                job.corrupted = True

    # --- judgement

    def unexpected_exits(self) -> list[str]:
        """Return the unexpected exits so far."""
        return [
            f"{unexpected_exit}\n{worker.log_tail()}"
            for worker in self.workers
            if (unexpected_exit := worker.unexpected_exit()) is not None
        ]

    def drain(self) -> list[str]:
        """End the storm, let healthy workers finish, and return the problems."""
        self.note("--- the storm is over")
        self.fill(full=False)
        self.suspend(suspended=False)
        self.shared[stages.CLOCK] = 0
        self.shared[stages.DRAINING] = 1
        for worker in self.workers:
            worker.traps.clear()
        self._wake_all()
        for _ in range(2):
            self._fork(Traps())
        settled = self._until(lambda: not self._problems(), DRAINED_WITHIN)
        problems = [] if settled else self._problems()
        problems += self._plain_job()
        problems += self._stop_all()
        return problems + self.unexpected_exits()

    def _until(self, holds: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not (held := holds()) and time.monotonic() < deadline and not self.unexpected_exits():
            self._wake_all()
            self._resubmit()
            time.sleep(0.02)
        return held or holds()

    def _wake_all(self) -> None:
        """Resume suspended processes; a trap that was met may suspend one late."""
        for worker in self.workers:
            worker.resume()

    def _resubmit(self) -> None:
        """Resubmit the ensured jobs."""
        with suppress(RedisError, ResponseError):
            self.client.resubmit()

    def _plain_job(self) -> list[str]:
        """Return the problems of the next plain job."""
        self.note("the next plain job")
        job = self._new("finish", ensure=False)
        try:
            self.client.enqueue(self._request(job))
        except (RedisError, ResponseError) as error:
            return [f"the next plain job cannot be enqueued: {error}"]
        state = keys.state(job.id)
        if self._until(lambda: self.connection.hget(state, "status") == b"finished", PLAIN_WITHIN):
            return []
        found = self.connection.hgetall(state), self.connection.hgetall(f"rq:job:{job.id}")
        return [f"the next plain job is not finished after {PLAIN_WITHIN:g} s: {found}"]

    def _stop_all(self) -> list[str]:
        """Terminate every worker; returns those that do not exit."""
        self._wake_all()
        for worker in self.workers:
            worker.terminate()
        return [
            f"worker {worker.number} did not stop within {STOPS_WITHIN:g} s\n{worker.log_tail()}"
            for worker in self.workers
            if not worker.wait(STOPS_WITHIN)
        ]

    def _problems(self) -> list[str]:
        """Return violations of the rules above once all work is done."""
        try:
            places = {"queue": self.queue.key, "intermediate queue": self.queue.intermediate_queue_key,
                      "started registry": self.queue.started_job_registry.key}  # fmt: skip
            if not self._clock_was_wrong:
                places["scheduled registry"] = self.queue.scheduled_job_registry.key
            entries = {name: self._entries(key) for name, key in places.items()}
            busy = [f"the {name} holds {found}" for name, found in entries.items() if found]
            if busy:
                return busy
            found = [f"{job.id}: {problem}" for job in self.jobs.values() for problem in self._job_problems(job)]
            return found + self._endless()
        except RedisError as error:
            return [f"Redis: {error}"]

    def _entries(self, key: str) -> list[bytes]:
        match self.connection.type(key):
            case b"list":
                return RAW.validate_python(self.connection.lrange(key, 0, -1))
            case b"zset":  # garbage may be scheduled to no time at all
                far = time.time() + 86_400 if key == self.queue.scheduled_job_registry.key else "+inf"
                return RAW.validate_python(self.connection.zrangebyscore(key, "-inf", far))
            case b"none":
                return []
        return [b"something else"]

    def _job_problems(self, job: Submitted) -> list[str]:
        if job.corrupted or (job.lost and not job.ensured):
            return []
        if job.lost:
            ended = self.client.status(job.id).status in ("finished", "failed", "cancelled")
            return [] if ended else [f"ensured, but {self.client.status(job.id).status}"]
        events = self.client.lifecycle_events(job.id)
        kinds = [event.type for event in events]
        last = next((event for event in reversed(events) if event.type != "warning"), None)
        problems = []
        rq_status = text(self.connection.hget(f"rq:job:{job.id}", "status") or b"")
        status = self.client.status(job.id).status
        if rq_status == "deferred" and job.parent is not None and self._holds_back(job.parent):
            return []
        if last is None or last.type not in ("training_done", "job_failed", "job_cancelled"):
            return [f"has not ended: {kinds}; {status}, for RQ {rq_status}"]
        if rq_status not in OVER:
            problems.append(f"ended ({kinds[-1]}), but is {rq_status} for RQ")
        if kinds.count("training_done") > 1:
            problems.append(f"is told finished {kinds.count('training_done')} times")
        if "training_done" in kinds and len(kinds) - 1 - kinds.index("training_done") >= job.submissions:
            problems.append(f"goes on after it was finished: {kinds}")
        final = [event for event in events if isinstance(event, JobFailed) and event.reason not in RETRIED]
        said = [f"{event.reason} by attempt {event.attempt}" for event in final]
        allowed = len(set(said)) + job.submissions - 1 if self.disturbed else job.submissions
        if len(said) > allowed:
            problems.append(f"is told failed {len(said)} times: {said}")
        booked = self.connection.xlen(f"rq:results:{job.id}")
        if booked > job.submissions:
            problems.append(f"is booked with RQ {booked} times")
        expected = {"training_done": "finished", "job_failed": "failed", "job_cancelled": "cancelled"}[last.type]
        if status != expected:
            problems.append(f"is {status}, but was told {last.type} last")
        if isinstance(last, JobFailed) and not (last.reason and last.message):
            problems.append("failed without a reason")
        if self.connection.exists(f"rq:executions:{job.id}"):
            problems.append(f"leaves executions {self.connection.zrange(f'rq:executions:{job.id}', 0, -1)}")
        following = self.client.status(f"{job.id}-repeat-2").status
        if job.repeats and kinds[-1] == "training_done" and job.submissions == 1 and following not in ENDED:
            problems.append(f"is to be repeated, but its next run is {following}")
        return problems + self._model_problems(job, status)

    def _is_deferred(self, job: Submitted) -> bool:
        return self.connection.type(f"rq:job:{job.id}") == b"hash" and (
            self.connection.hget(f"rq:job:{job.id}", "status") == b"deferred"
        )

    def _holds_back(self, parent: Submitted) -> bool:
        """Whether the jobs that depend on `parent` may wait for ever."""
        if parent.lost or parent.corrupted:  # its hash may be anything
            return True
        told = self._told(parent)
        rq_status = text(self.connection.hget(f"rq:job:{parent.id}", "status") or b"")
        cancelled = rq_status in ("canceled", "stopped") or (bool(told) and told[-1].type == "job_cancelled")
        return cancelled or rq_status == "deferred"

    def _model_problems(self, job: Submitted, status: str) -> list[str]:
        result = self.client.result(job.id) if status == "finished" else None
        if result is None:
            return [f"is {status} without a result"] if status == "finished" else []
        try:
            digest = hashlib.sha256((self.settings.artifact_dir / job.id / MODEL).read_bytes()).hexdigest()
        except OSError as error:
            return [f"is finished without a model: {error}"]
        return [] if digest == result.model_sha256 else ["the model on disk is another attempt's than the result"]

    def _endless(self) -> list[str]:
        """Return keys of ended jobs without a time to live."""
        ours = {job.id for job in self.jobs.values() if not (job.endless or job.corrupted or self._is_deferred(job))}
        # RQ adds dependents to a job that is over: the next round of the registry cleaner lets them expire.
        cleaned = {keys.rq_dependents(job.parent.id).encode() for job in self.jobs.values() if job.parent is not None}
        found = [key for key in all_keys(self.connection) if key.startswith(OF_JOBS) and key not in cleaned]
        of_jobs = [key.decode(errors="replace") for key in found]
        return [
            f"{name} has no time to live"
            for name in of_jobs
            if ours & set(PARTS.split(name)) and self.connection.ttl(name) == -1
        ]

    def report(self, problems: Sequence[str]) -> str:
        """Return history, jobs, runs and logs for a failure."""
        jobs = [
            f"{job.id}: {job.behaviour}{', lost' * job.lost}{', corrupted' * job.corrupted}, "
            f"{[event.type + ':' + str(event.attempt) for event in self._told(job)]}"
            for job in self.jobs.values()
        ]
        logs = [f"--- worker {worker.number}\n{worker.log_tail()}" for worker in self.workers]
        return "\n".join([*problems, "--- history", *self.history, "--- jobs", *jobs, "--- runs", *self.runs(), *logs])

    def runs(self) -> list[str]:
        """Return a line for each run of a job: id, attempt, pid."""
        path = self.directory / "runs"
        return path.read_text().splitlines() if path.exists() else []

    def _told(self, job: Submitted) -> list[AnyEvent]:
        try:
            return self.client.lifecycle_events(job.id)
        except (RedisError, ResponseError):
            return []

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        self.connection.close()
        shutil.rmtree(self.directory, ignore_errors=True)
