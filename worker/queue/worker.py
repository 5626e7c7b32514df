"""The RQ worker: what it takes from the queue, who runs it, and what becomes of it whatever dies.

RQ's own loop is not used: it ends without a word on the first job it cannot read or the first error of Redis, and
its bookkeeping marks a job failed when Redis is away. Its data are: queue, registries, job hash, results.
"""

import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from types import FrameType
from typing import Final, Literal, NoReturn

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import Queue, Worker
from rq.exceptions import NoSuchJobError
from rq.job import JobStatus
from rq.serializers import JSONSerializer

from training.errors import InvalidConfig, PreflightError, TimedOut
from training.process.child import die_with_parent, readable
from training.system.requirements import compiled_anew, require_training_packages
from training.system.resources import detect
from worker.broker.fencing import Place, lease_of, take_back
from worker.broker.retry import (
    CLUSTERED,
    FIRST_PAUSE,
    HOPELESS,
    LONGEST_PAUSE,
    T,
    clustered,
    insist,
    trouble,
)
from worker.broker.rq_records import Execution, RqRecords, failed
from worker.broker.shared_keys import put_aside_wrong_types, repairing, shared_keys
from worker.config.settings import Settings
from worker.events.state import ask_to_stop
from worker.exporters.base import exports, see_that_usable
from worker.jobs.heartbeat import effective_id
from worker.jobs.paths import see_that_writable
from worker.jobs.pipeline import Interrupted, limits
from worker.jobs.supervisor import Supervisor, Taken, Told
from worker.ops import logging as logs
from worker.ops.janitor import Janitor
from worker.ops.signals import hear_hangup
from worker.queue import quarantine
from worker.queue.admission.admit import Replayed, accepted_ttl, admit
from worker.queue.reaper import Reaper
from worker.queue.refusal import put_away, say_failed, told_under
from worker.queue.registry_cleaner import Maintenance
from worker.queue.untrusted_job import Poison, SafeJob, load
from worker.queue.worker_lock import Presence
from worker.wire import is_job_id

WORKER_TTL: Final = 45
"""Seconds after which RQ's tools take a silent worker for dead."""
MONITOR_EVERY: Final = 2
"""Seconds between two signs of life that a busy worker gives RQ's tools."""
TAKE_WITHIN: Final = 1
"""Seconds for which one look into the empty queue waits; a signal is heard after as long."""
HARD_TIMEOUT: Final = 60
"""Seconds after a job's timeout at which a supervisor that did not end by itself is killed."""
STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that tell a worker to stop."""
ENDED: Final = (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED, JobStatus.STOPPED)
LEAST_REDIS: Final = (6, 2)
"""From here on a job can be moved from one list to another without being lost between them."""
WRITTEN: Final = {
    "artifact_dir": "PREFLIGHT_ARTIFACT_DIR", "state_dir": "PREFLIGHT_STATE_DIR", "cache_dir": "PREFLIGHT_CACHE_DIR",
}  # fmt: skip
"""Directories that every job writes to, and what sets them."""
BAD_CERTIFICATE: Final = ("certificate verify failed", "is not valid for")
"""How the ssl module says that the other side is not who it should be."""
ADVICE: Final = "set REDIS_URL or start Redis"
ADVICE_UNSET: Final = "REDIS_URL is not set: set it, or start Redis there"
SOCKET_TIMEOUT: Final = 5
"""Seconds for which an answer of Redis is waited for; longer than `TAKE_WITHIN`."""


CLOCKS_APART: Final = 60.0
"""Seconds between this host's clock and Redis's from which on a worker warns: what it tells has wrong times."""
CLOCKS_FAR_APART: Final = 3600.0
"""Seconds from which on it does not start: it would take another's checkpoints for old and remove them, and refuse
certificates."""


class ClockSkew(PreflightError):
    """The clocks of this host and of Redis are hours apart."""

    reason = "clock_skew"


class RedisUnreachable(PreflightError):
    """Redis did not answer while the worker started, or no longer lets it in."""

    reason = "redis_unreachable"


class PreflightWorker(Worker):
    """Takes jobs one after the other; a forked supervisor runs each, so that its death is one job's affair."""

    def __init__(self, queue: Queue, connection: Redis, settings: Settings) -> None:
        # A name of its own at every boot: that of a killed predecessor stays registered for a while.
        name = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
        super().__init__(
            [queue],
            name=name,
            connection=connection,
            serializer=JSONSerializer,
            worker_ttl=WORKER_TTL,
            job_monitoring_interval=MONITOR_EVERY,
            log_job_description=False,
        )
        self._queue = queue
        self._settings = settings
        self._own_pid = os.getpid()
        self._told = Told()
        self._presence: Presence | None = None
        self._log = structlog.get_logger("preflight")
        self._records = RqRecords(connection, queue, name, accepted_ttl=accepted_ttl(settings))
        self._shared_keys = shared_keys(queue, name)
        self._running: Taken | None = None
        """What a supervisor is running."""
        self._is_idle = False
        """Whether RQ's records say so."""
        self._reaper = Reaper(connection, queue, self._put_away)
        self._maintenance = Maintenance(connection, queue, name, ttl=settings.state_ttl)
        self._janitor = Janitor(settings)  # by the clock, too, which `connect` has compared
        # Read between other things and not by RQ's thread: a fork beside a thread may find its locks taken for ever.
        self._commands = connection.pubsub(ignore_subscribe_messages=True)

    # --- the worker

    def run(self, presence: Presence, *, burst: bool) -> None:
        """Take jobs until a signal says otherwise; with `burst`, until the queue is empty.

        Raises:
            redis.exceptions.AuthenticationError, NoPermissionError: Redis no longer lets this worker in.
            SystemExit: told to stop twice; the job at hand was killed and put back.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)
        hear_hangup(self._hear)
        self._presence = presence
        try:
            self._insist(self._enter, "sign on", whatever=True)
            dead = presence.dead_before()
            self._insist(lambda: self._reaper.look(dead), "look for jobs of workers that died here", whatever=True)
            while (taken := self._take(burst)) is not None:
                self._run_job(taken)
        except Interrupted:
            pass
        finally:
            self._leave()
        if self._told.times > 1:
            raise SystemExit(1)

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signal handler's signature
        """Pass the first signal on to the supervisor, whose child saves; kill it at the second."""
        if number == signal.SIGHUP and self._told():
            return  # a terminal that is closed may say so twice, as shell and as kernel
        self._told.times += 1
        if self.horse_pid and not self.is_horse:
            self._signal_horse(signal.SIGTERM if self._told.times == 1 else signal.SIGKILL)

    def _signal_horse(self, number: signal.Signals) -> None:
        try:
            os.kill(self.horse_pid, number)
        except ProcessLookupError:
            return

    def _insist(self, action: Callable[[], T], what: str, *, whatever: bool = False) -> T:
        return insist(lambda: self._repairing(action), what, self._look, whatever=whatever)

    def _repairing(self, action: Callable[[], T]) -> T:
        return repairing(action, self.connection, self._shared_keys)

    def _look(self) -> None:
        self._beat()
        self._told.look()

    def _beat(self) -> None:
        """Show those who look at this container that this process goes on, whether Redis is there or not."""
        if self._presence is not None:
            self._presence.beat()

    def _enter(self) -> None:
        self._register()
        self._commands.subscribe(self.pubsub_channel_name)

    def _register(self) -> None:
        self.connection.delete(self.key)  # RQ refuses a name that is registered in part
        Worker.register_birth(self)

    def _leave(self) -> None:
        try:
            Worker.teardown(self)
            self._commands.close()
        except RedisError as error:
            self._log.warning("not_signed_off", detail=trouble(error))

    def _hear_commands(self) -> None:
        """Take RQ's commands as hints: `shutdown` is a SIGTERM, to stop a job a cancellation; others do nothing."""
        while (message := self._commands.get_message(timeout=0)) is not None:
            try:
                command = json.loads(message["data"])
            except (ValueError, RecursionError):
                continue
            match command:
                case {"command": "shutdown"}:
                    os.kill(self._own_pid, signal.SIGTERM)
                case {"command": "stop-job" | "stop-execution", "job_id": str(rq_id)} if is_job_id(rq_id):
                    running = self._running
                    job_id = running.job_id if running is not None and running.rq_job.id == rq_id else rq_id
                    ask_to_stop(self.connection, job_id, ttl=self._settings.state_ttl)

    # --- taking a job

    def _take(self, burst: bool) -> Taken | None:
        """Return the next job that is let in; None when told to stop, or with `burst` when there is none."""
        pause = 0.1
        while not self._told():
            self._beat()
            try:
                raw_id = self._repairing(partial(self._look_around, burst))
                if raw_id is not None:
                    taken = self._admit(raw_id)
                    if taken is not None:
                        return taken
                elif burst and not self._maintenance.due():
                    return None
                pause = 0.1
            except HOPELESS:
                raise
            except RedisError as error:
                self._log.warning("waiting_for_redis", to="take a job", detail=trouble(error), retry_in_s=pause)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        return None

    def _look_around(self, burst: bool) -> bytes | None:
        """Do what an idle worker does, and return the id of the next job, if there is one within a second."""
        self._show_life()
        if not self._is_idle:
            self._records.end_executions()
            self._is_idle = True
        self._hear_commands()
        self._do_chores()
        return self._next_id(burst)

    def _do_chores(self) -> None:
        """Do what is due for others; a fault of ours in it keeps no job waiting."""
        for chore, step in (
            (self._reaper, self._look_after_others), (self._maintenance, self._maintenance.step),
            (self._janitor, self._janitor.step),
        ):  # fmt: skip
            try:
                if chore.due():
                    step()
            except RedisError:
                raise
            except Exception:
                self._log.exception("chore_failed", chore=type(chore).__name__)

    def _look_after_others(self) -> None:
        put_aside_wrong_types(self.connection, self._shared_keys)  # producers would stumble over them, too
        self._reaper.look()

    def _show_life(self) -> None:
        """Tell RQ's tools that this worker lives; sign on again where Redis has forgotten it."""
        if not self.connection.exists(self.key):
            self._log.warning("redis_lost_its_data", detail="signing on again; jobs that waited there are gone")
            self._repairing(self._register)
            self.connection.hset(self.key, "state", "idle" if self._running is None else "busy")
            if self._running is not None:
                self.connection.hset(self.key, "current_job", self._running.rq_job.id)
        self.heartbeat()

    def _next_id(self, burst: bool) -> bytes | None:
        source, between = self._queue.key, self._queue.intermediate_queue_key
        if burst:
            taken = self.connection.lmove(source, between, "LEFT", "RIGHT")
        else:
            taken = self.connection.blmove(source, between, TAKE_WITHIN, "LEFT", "RIGHT")
        return taken.encode() if isinstance(taken, str) else taken

    def _admit(self, raw_id: bytes) -> Taken | None:
        """Return the job of this id, or None when there is nothing to run.

        Whatever goes wrong here would go wrong with every worker, so that the job is quarantined; Redis being away is
        waited for.
        """
        try:
            return self._insist(partial(self._let_in, raw_id), "read the job")
        except (Interrupted, *HOPELESS):
            raise
        except Exception as error:
            self._quarantine(raw_id.decode(errors="surrogateescape"), error)
            return None

    def _let_in(self, raw_id: bytes) -> Taken | None:
        """Return the job of this id, or None when there is nothing to run; may be called again."""
        try:
            job = load(raw_id, self.connection)
            if job.status not in ENDED:
                return Taken(job, admit(job, self.connection, self._settings), effective_id(job.args, job.id))
            # Else it was enqueued twice under one id, and ended before its second turn.
        except Poison as poison:
            self._put_away(poison)
            return None
        except NoSuchJobError:
            self._log.warning("job_is_gone", rq_id=ascii(raw_id)[:80], detail="its hash expired or was deleted")
        except InvalidConfig as error:
            self._refuse(job, error)
        self.connection.lrem(self._queue.intermediate_queue_key, 0, raw_id.decode("ascii"))
        return None

    def _put_away(self, poison: Poison) -> None:
        put_away(self.connection, self._queue, self._settings, poison)

    def _quarantine(self, rq_id: str, error: Exception, claimed_id: str | None = None) -> None:
        """Take a job out of the queue that made this process fail."""
        self._log.error("job_quarantined", rq_id=ascii(rq_id)[:80], exc_info=error)
        why = f"taking it failed ({type(error).__name__}: {ascii(str(error))[:500]}); please report it"
        poison = Poison(why, rq_id)
        try:
            self._insist(
                lambda: put_away(self.connection, self._queue, self._settings, poison, claimed_id), "quarantine the job"
            )
        except (Interrupted, *HOPELESS):
            raise
        except Exception:
            # Publishing why is what failed: the job has to go all the same.
            self._log.exception("quarantine_not_published", rq_id=ascii(rq_id)[:80])
            self._insist(
                lambda: quarantine.put(self.connection, self._queue, rq_id, why, ttl=self._settings.state_ttl),
                "quarantine the job",
            )

    def _refuse(self, job: SafeJob, error: PreflightError) -> None:
        """Fail a job that is not let in."""
        own_id = effective_id(job.args, job.id)
        copied = isinstance(error, Replayed) and own_id == job.id
        told = None if copied else told_under(self.connection, own_id, job.id)
        say_failed(self.connection, self._settings, told, error)
        self._records.end_job(job, own_id, failed(job, f"{error.reason}: {error.message}"), None, None)

    # --- having it run

    def _run_job(self, taken: Taken) -> None:
        """Run a job to its end, or quarantine it where that makes this process fail."""
        self._running, self._is_idle = taken, False
        try:
            self._execute(taken)
        except (Interrupted, *HOPELESS):
            raise
        except Exception as error:
            self._quarantine(taken.rq_job.id, error, taken.job_id)
        finally:
            self._running = None

    def _execute(self, taken: Taken) -> None:
        """Have a supervisor run the job, and put the job back when the supervisor dies."""
        job = taken.rq_job
        execution = Execution(secrets.token_hex(16), time.time())
        self._insist(lambda: self._records.begin_execution(job, execution), "record the execution")
        place = Place(self._queue, job.id, execution.id)
        if self._told():
            self._put_back(taken, place)
            return
        status = self._fork_and_await(taken, execution)
        if status == "not begun":
            self._put_back(taken, place)
        elif status == "timeout":
            late = TimedOut(
                f"the job ran longer than {job.timeout} s and did not end when told; its supervisor was killed"
            )
            self._insist(lambda: say_failed(self.connection, self._settings, taken.job_id, late), "tell the failure")
            end = failed(job, f"{late.reason}: {late.message}")
            self._insist(lambda: self._records.end_job(job, taken.job_id, end, execution, None), "record the failure")
        elif status != 0:
            self._log.error("supervisor_died", job_id=taken.job_id, detail=describe_exit(status))
            self._put_back(taken, place)

    def _fork_and_await(self, taken: Taken, execution: Execution) -> int | Literal["timeout", "not begun"]:
        """Run the supervisor and return its wait status, that it had to be killed, or that none could be started."""
        ended, theirs = os.pipe()  # the supervisor alone keeps their end open, until it dies
        try:
            try:
                pid = self._fork(taken, execution)
            finally:
                os.close(theirs)
            return "not begun" if pid is None else self._await(pid, ended, taken.rq_job, execution)
        except Exception:
            self._signal_horse(signal.SIGKILL)  # its job is taken out of the queue: nobody may go on with it
            raise
        finally:
            os.close(ended)
            self._horse_pid = 0

    def _fork(self, taken: Taken, execution: Execution) -> int | None:
        """Start the supervisor and return its pid; wait while there is no process to be had, None when told to stop."""
        pause = FIRST_PAUSE
        while True:
            try:
                return self._fork_once(taken, execution)
            except OSError as error:
                detail = (
                    f"the system starts none ({error.strerror}); raise this container's limit on processes or memory"
                )
                self._log.warning("waiting_for_a_process", job_id=taken.job_id, detail=detail, retry_in_s=pause)
            self._beat()
            self._tell_of(taken.rq_job, execution)
            if self._told():
                return None
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _fork_once(self, taken: Taken, execution: Execution) -> int:
        # A signal that reaches the fork before Python has set it up is forgotten there: none is let through until then.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            pid = os.fork()
            if pid == 0:
                self._be_supervisor(taken, execution)
            self._horse_pid = pid
            told_before = self._told()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        if told_before:
            self._signal_horse(signal.SIGTERM)  # it came between the last look and the fork
        return pid

    def _await(self, pid: int, ended: int, job: SafeJob, execution: Execution) -> int | Literal["timeout"]:
        """Wait for the end of a supervisor, with which the pipe `ended` ends."""
        began = time.monotonic()
        while True:
            if readable(ended, MONITOR_EVERY):
                return os.waitpid(pid, 0)[1]
            self._beat()
            in_touch = self._tell_of(job, execution)
            over = 0 < job.timeout < time.monotonic() - began - HARD_TIMEOUT
            if over and in_touch:  # without Redis it may be waiting to tell its result
                self._signal_horse(signal.SIGKILL)
                os.waitpid(pid, 0)
                return "timeout"

    def _tell_of(self, job: SafeJob, execution: Execution) -> bool:
        """Tell RQ's tools that worker and job live; returns whether Redis took it."""
        try:
            self._repairing(self._show_life)
            self._hear_commands()
            self._repairing(lambda: self._records.keep_execution(job, execution))
        except RedisError as error:
            self._log.warning("no_sign_of_life_given", detail=f"{trouble(error)}; the job goes on")
            return False
        return True

    def _put_back(self, taken: Taken, place: Place) -> None:
        """Put a job that nobody runs any more to the front of its queue."""
        mine = f"{self.name}/{place.execution} "
        seen = {"lease": ""}

        def put_back() -> None:
            seen["lease"] = lease_of(self.connection, taken.job_id)
            if seen["lease"].startswith(mine) or not seen["lease"]:
                take_back(self.connection, taken.job_id, place, lease=seen["lease"])

        try:
            self._insist(put_back, "put the job back")
        except Interrupted:
            self._log.warning("job_left_behind", job_id=taken.job_id, detail="the next worker takes it back")

    # --- being the supervisor

    def _be_supervisor(self, taken: Taken, execution: Execution) -> NoReturn:
        """Run the job in this fork, and die with the worker: the children die with it in turn."""
        code = os.EX_SOFTWARE
        try:
            os.setpgrp()
            self._is_horse = True
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the worker's to hear
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            die_with_parent(self._own_pid)
            Supervisor(self.connection, self._queue, self.name, execution, taken, self._settings, self._told).run()
            code = 0
        except Interrupted:
            code = os.EX_TEMPFAIL
        except BaseException:
            self._log.exception("supervisor_failed", job_id=taken.job_id)
        finally:
            with suppress(AttributeError, OSError, ValueError):  # standard output may be closed, or gone
                sys.stdout.flush()
            os._exit(code)


def describe_exit(status: int) -> str:
    """Return what a wait status means, as a clause."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"it was ended by {signal.strsignal(number)} (signal {number})"
    code = os.WEXITSTATUS(status)
    if code == os.EX_TEMPFAIL:
        return "it was told to stop while Redis was away"
    return f"it exited with code {code}, which its last log lines explain"


def connect(settings: Settings) -> Redis:
    """Return a connection on which Redis has answered, trying again with growing pauses.

    Raises:
        RedisUnreachable: it did not answer within `redis_wait` seconds, refused the password, is too old, or is a
            cluster.
        ClockSkew: its clock and ours are hours apart.
    """
    log = structlog.get_logger("preflight")
    # Without redis-py's own retries: they would run a script or move a job twice, and try a refused password again.
    connection = Redis.from_url(
        settings.redis_url, socket_connect_timeout=SOCKET_TIMEOUT, socket_timeout=SOCKET_TIMEOUT,
        retry=Retry(NoBackoff(), 0),
    )  # fmt: skip
    deadline, pause = time.monotonic() + settings.redis_wait, 0.1
    while True:
        try:
            server = connection.info("server")
            break
        except RedisError as error:
            refused = isinstance(error, HOPELESS) or any(sign in str(error) for sign in BAD_CERTIFICATE)
            if refused or time.monotonic() + pause > deadline:
                raise RedisUnreachable(
                    f"Redis at {settings.safe_redis_url} "
                    f"{'cannot be used' if refused else f'did not answer for {settings.redis_wait:g} s'}"
                    f" ({settings.scrubbed(str(error))}); "
                    f"{ADVICE if 'redis_url' in settings.model_fields_set else ADVICE_UNSET}"
                ) from error
            log.warning("redis_unreachable", url=settings.safe_redis_url, retry_in_s=pause)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    found = str(server["redis_version"])
    if tuple(int(part) for part in found.split(".")[:2]) < LEAST_REDIS:
        least = ".".join(map(str, LEAST_REDIS))
        raise RedisUnreachable(
            f"Redis at {settings.safe_redis_url} is {found}, but must be {least} or newer; update it"
        )
    if clustered(server):
        raise RedisUnreachable(f"Redis at {settings.safe_redis_url} {CLUSTERED}")
    if "server_time_usec" in server:  # not everything that speaks Redis's protocol says it
        _compare_clocks(time.time() - float(server["server_time_usec"]) / 1e6, settings)
    return connection


def _compare_clocks(ahead: float, settings: Settings) -> None:
    """Say when this host's clock is `ahead` of Redis's, or behind it, by much; raises `ClockSkew` by how much."""
    if abs(ahead) < CLOCKS_APART:
        return
    said = f"this host's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} that of Redis"
    if abs(ahead) < CLOCKS_FAR_APART:
        structlog.get_logger("preflight").warning("clock_skew", detail=f"{said}; set both by NTP")
        return
    raise ClockSkew(f"{said} at {settings.safe_redis_url}, but may differ by {CLOCKS_FAR_APART:.0f} s; set both by NTP")


def serve(settings: Settings, *, burst: bool = False) -> None:
    """Take jobs until a signal says otherwise; with `burst`, until the queue is empty.

    Raises:
        MissingPackage: the training packages are not installed, so every job would fail; or what speaks to such a URL.
        ArtifactError: a directory cannot be written, so every job would fail.
        InvalidConfig: a URL that models shall also go to means nothing.
        RedisUnreachable: Redis did not answer, or no longer lets this worker in.
        ClockSkew: this host's clock and Redis's are hours apart.
    """
    logs.configure(settings.log_format, settings.log_level, sys.stdout, settings.secrets)
    log = structlog.get_logger("preflight")
    require_training_packages()
    for directory, variable in WRITTEN.items():
        see_that_writable(getattr(settings, directory), variable)
    for export in exports(settings):
        see_that_usable(export)
    connection = connect(settings)
    queue = Queue(settings.queue, connection=connection, serializer=JSONSerializer)
    worker = insist(lambda: PreflightWorker(queue, connection, settings), "name the connection", lambda: None)
    log.info(
        "worker_started",
        version=version("preflight-worker"),
        worker=worker.name,
        queue=settings.queue,
        redis=settings.safe_redis_url,
        data_dir=str(settings.data_dir),
        artifact_dir=str(settings.artifact_dir),
        cache_dir=str(settings.cache_dir),
        state_dir=str(settings.state_dir),
        **settings.platform(),
    )
    log.info("resource_limits", **limits(detect()))
    if slow := compiled_anew():
        log.warning("starts_are_slow", detail=slow)
    # RQ's own account of what goes well repeats our events; the second logger has a level of its own.
    for name in ("rq", "rq.worker"):
        logging.getLogger(name).setLevel("DEBUG" if settings.log_level == "debug" else "WARNING")
    try:
        with Presence(settings.state_dir, worker.name) as presence:
            worker.run(presence, burst=burst)
    except HOPELESS as error:
        raise RedisUnreachable(
            f"Redis at {settings.safe_redis_url} no longer lets this worker in ({settings.scrubbed(str(error))}); "
            "check the credentials and their rights"
        ) from error
    finally:
        for number in STOPS:  # one more shall not kill what has ended well and only leaves
            signal.signal(number, signal.SIG_IGN)
    log.info("worker_stopped", worker=worker.name)
