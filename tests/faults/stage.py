"""Where a fault happens: one Redis, the way to it, and a service's workers, in a directory of their own."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from pathlib import Path
from random import Random
from typing import Final, Generic, Self, TypeVar

import psutil
from pydantic import JsonValue
from redis import Redis
from rq import Queue

from faults.machines import Proxy, RedisServer

TESTS: Final = Path(__file__).parents[1]
"""Where workers import `faults` from."""
LOOK_EVERY: Final = 0.02
LOOK_CLOSELY: Final = 0.001
"""Seconds between two looks for a moment that lasts milliseconds."""
COUNT_EVERY: Final = 0.25
"""Seconds between two counts of the trainings that run."""
RESTART_AFTER: Final = 0.5
"""Seconds after which a platform starts a container again."""
ORPHANS_AFTER: Final = 10.0
"""Seconds after a job's end, when nothing but the workers may be left."""
RESUBMIT_EVERY: Final = 2.0
"""Seconds between two looks of a producer at its outbox."""
CALIBRATION_S: Final = 2.0
"""Seconds that a calibration may take, the import of torch apart."""
FIRST_REPORT_S: Final = 0.5
"""Seconds from the first step to the first progress report: training.loop.trainer's window, which imports torch."""
MARK: Final = "TMPDIR"
"""The variable by which a scene's processes are known, whoever their parent is by now."""

Fields = Mapping[str, JsonValue]

FIELDS: Final[Fields] = {
    "type": "preflight.train.v1", "dataset": "digits", "model": "cnn", "epochs": 3, "batch_size": 2,
    "deterministic": True, "calibrate": False, "plan": {"threads": 1},
}  # fmt: skip
"""The usual job: about five seconds of training on one core, in small batches, so that there are many steps."""


class Moment(StrEnum):
    """When a fault strikes."""

    DEQUEUED = "between dequeue and start"
    CALIBRATION = "calibration"
    FIRST_STEP = "first step"
    MID_EPOCH = "mid epoch"
    CHECKPOINT = "checkpoint write"
    ARTIFACT = "artifact write"
    MARKED = "after the marker, before the return"


BRIEF: Final = (Moment.DEQUEUED, Moment.CHECKPOINT, Moment.ARTIFACT, Moment.MARKED)
"""Moments that last milliseconds."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a round trains."""

    id: str
    fields: Fields
    """The TrainJob, without its id."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long an undisturbed job takes here."""

    first_step_s: float
    """From the start of the training process to its first step."""
    train_s: float
    whole_s: float
    """From the submission to the end."""


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What comes of a job when nothing goes wrong."""

    pace: Pace
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a job, and of the promises made about it."""

    problems: tuple[str, ...] = ()
    """A few words for each broken promise about what happens."""
    late: tuple[str, ...] = ()
    """The same for promises about how long it takes."""
    lost: bool = False
    """The job did not finish."""
    lost_s: float | None = None
    """Seconds of training that had to be done again; None where that cannot be said."""
    double_runs: int = 0
    """Trainings of one job at the same time, or after it was finished."""
    double_publications: int = 0
    orphans: int = 0
    takeover_s: float | None = None
    """Until the next attempt began."""
    moment: Moment | None = None
    """When the fault struck."""
    missed: tuple[Moment, ...] = ()
    """Moments that it should have struck at, and came too late for."""
    not_run: str | None = None
    """Why the fault could not be had here."""

    @property
    def survived(self) -> bool:
        """Whether every promise was kept."""
        return not self.problems + self.late


class Container:
    """A worker process and what starts it again when it ends, as a platform does."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self.log = log
        self.restarted = True
        """Whether the platform starts it again; not after the death of a host."""
        self.exits: list[int] = []
        """Exit codes so far."""
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_at = 0.0

    def start(self, stdout: int | None = None) -> None:
        """Start the worker; output goes to the log unless `stdout` says otherwise."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout, stderr=log, start_new_session=True,
            )  # fmt: skip

    def tend(self) -> None:
        """Notice an end, and start again what has to be."""
        if self._process is not None and self._process.poll() is not None:
            self.exits.append(self._process.returncode)
            self._process, self._ended_at = None, time.monotonic()
        if self._process is None and self.restarted and time.monotonic() - self._ended_at > RESTART_AFTER:
            self.start()

    def ended(self) -> bool:
        """Whether the worker is gone."""
        return self._process is None or self._process.poll() is not None

    @property
    def tree(self) -> list[psutil.Process]:
        """The worker and everything below it, the worker first."""
        if self._process is None:
            return []
        try:
            worker = psutil.Process(self._process.pid)
            return [worker, *worker.children(recursive=True)]
        except psutil.Error:
            return []

    @property
    def worker(self) -> psutil.Process | None:
        """The worker process, while there is one."""
        return next(iter(self.tree), None)

    @property
    def supervisor(self) -> psutil.Process | None:
        """RQ's work-horse, while there is one."""
        worker = self.worker
        return next((process for process in self.tree[1:] if worker and process.ppid() == worker.pid), None)


class Scene(ABC):
    """One Redis behind a proxy, and the containers of one service. Use as a context."""

    moments: frozenset[Moment]
    """Those that this service has."""
    queue: Queue

    def __init__(self, directory: Path, base: Mapping[str, str], expected: Undisturbed | None, beyond: float) -> None:
        """Set the scene.

        Args:
            directory: for everything; made here.
            base: environment of the workers.
            expected: what comes of an undisturbed job; None when this is the scene to find out.
            beyond: seconds beyond that after which a job that has not ended counts as lost.
        """
        self.directory = directory
        self.expected = expected
        self.patience = beyond + (expected.pace.whole_s if expected else beyond)
        self.redis = RedisServer(directory / "redis")
        self.proxy = Proxy(directory / "proxy.sock", self.redis.path)
        self.connection: Redis = Redis.from_url(self.redis.url)
        self.containers: list[Container] = []
        self.most_trainings = 0
        """Most trainings seen at the same time since the last job was made."""
        self.emptied = False
        """Whether Redis lost its data since the last job was made."""
        self.damaged = 0
        """Checkpoints of the last job that were made unusable: so many intervals more may be lost."""
        self.problems: list[str] = []
        """Promises that were broken here about what happens."""
        self.late: list[str] = []
        """Promises that were broken here about how long it takes."""
        self.artifacts = directory / "artifacts"
        """Where models go, each to a directory of its job's."""
        self.site = directory / "site"
        """For packages that the workers can import."""
        python_path = [str(self.site), str(TESTS), *filter(None, [base.get("PYTHONPATH")])]
        self._base = {**base, "PYTHONPATH": os.pathsep.join(python_path), MARK: str(directory / "tmp")}
        self._jobs = count(1)
        self._counted = 0.0
        self._trainings = 0

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Start Redis and open the way to it."""
        for name in ("redis", "tmp", "site", "artifacts"):
            (self.directory / name).mkdir(parents=True)
        self.redis.start()
        self.proxy.open()

    def close(self) -> None:
        """End everything; may be called again."""
        for container in self.containers:
            container.restarted = False
        while processes := self.processes():
            hit(processes, signal.SIGKILL)
            time.sleep(LOOK_EVERY)
            for container in self.containers:
                container.tend()
        self.proxy.cut()
        self.redis.kill()

    @property
    def intact(self) -> bool:
        """Whether every promise was kept here so far."""
        return not self.problems + self.late

    def sums(self, verdict: Verdict) -> Verdict:
        """Return the verdict with everything that was noticed here, and keep what it says."""
        self.problems += verdict.problems
        self.late += verdict.late
        return replace(verdict, problems=tuple(self.problems), late=tuple(self.late))

    def discard(self) -> None:
        """Delete the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- containers and their processes

    def add_container(
        self, environment: Mapping[str, str] | None = None, *, before: Sequence[str] = (), stdout: int | None = None
    ) -> Container:
        """Start a worker in a container of its own.

        Args:
            environment: set over that of the scene.
            before: a command that execs the worker.
            stdout: descriptor for its output; None: its log.
        """
        log = self.directory / f"worker-{len(self.containers)}.log"
        container = Container([*before, *self.command()], {**self._base, **(environment or {})}, log)
        self.containers.append(container)
        container.start(stdout)
        return container

    @property
    def container(self) -> Container:
        """The first container, started when there is none."""
        return self.containers[0] if self.containers else self.add_container()

    def processes(self) -> list[psutil.Process]:
        """Return every living process that a worker of this scene is or has started."""
        mark = f"{MARK}={self._base[MARK]}".encode()
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                # One that has ended and waits for its parent has no environment any more.
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(psutil.Process(pid))
        return found

    def strangers(self) -> list[psutil.Process]:
        """Return the scene's processes that are not its workers."""
        workers = [container.worker for container in self.containers]
        return [process for process in self.processes() if process not in workers]

    def await_workers(self) -> None:
        """Wait until every container's worker has signed on."""
        self.wait(lambda: self.connection.scard("rq:workers") >= len(self.containers), self.patience)

    def orphans(self) -> int:
        """Return how many processes but the workers are left some seconds after a job's end."""
        gone = self.wait(lambda: not self.strangers(), ORPHANS_AFTER)
        return 0 if gone else len(self.strangers())  # a moment later the next job may run

    # --- waiting: all of it goes through `wait`, so that containers are tended and trainings counted meanwhile

    def wait(self, holds: Callable[[], bool], seconds: float, every: float = LOOK_EVERY) -> bool:
        """Wait until `holds`, at most `seconds`; returns whether it did."""
        deadline = time.monotonic() + seconds
        while not (held := holds()) and time.monotonic() < deadline:
            for container in self.containers:
                container.tend()
            self._count_trainings()
            time.sleep(every)
        return held

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.wait(lambda: False, seconds, min(LOOK_EVERY, seconds))

    def _count_trainings(self) -> None:
        if time.monotonic() - self._counted < COUNT_EVERY:
            return
        self._counted = time.monotonic()
        now = sum(self.is_training(process) for process in self.strangers())
        # Twice in a row: one that is dying while the next begins is no second run.
        self.most_trainings = max(self.most_trainings, min(now, self._trainings))
        self._trainings = now

    # --- jobs

    def new_job(self, **fields: JsonValue) -> Job:
        """Return a job of the usual size, with `fields` over the usual ones; it is not submitted."""
        self.most_trainings, self.emptied, self.damaged = 0, False, 0
        return Job(f"{self.directory.name}-{next(self._jobs)}", {**FIELDS, **fields})

    def wait_for(self, moment: Moment, job: Job, random: Random) -> bool:
        """Wait for a moment of a job; returns False when the job ended before it came."""
        opens, every = self.watch(moment, job, random), LOOK_CLOSELY if moment in BRIEF else LOOK_EVERY
        came: list[bool] = []  # what lasts milliseconds is looked at once

        def came_or_ended() -> bool:
            came.append(opens())
            return came[-1] or self.ended(job)

        self.wait(came_or_ended, self.patience, every)
        if came[-1]:
            self.sleep(self.delay(moment, random))
        return came[-1] and not self.over(moment, job)

    def await_end(self, job: Job) -> bool:
        """Wait for the end of a job, its producer looking after it meanwhile; returns whether it came in time."""
        resubmit_at = 0.0

        def over() -> bool:
            nonlocal resubmit_at
            if self.emptied and time.monotonic() > resubmit_at:
                resubmit_at = time.monotonic() + RESUBMIT_EVERY
                self.resubmit()
            return self.ended(job)

        return self.wait(over, self.patience)

    def delay(self, moment: Moment, random: Random) -> float:
        """Return how long after the first sign of a moment the fault shall strike."""
        pace = self.expected.pace if self.expected else Pace(0, 0, 0)
        match moment:
            case Moment.CALIBRATION:
                return random.uniform(0, 1.5 * CALIBRATION_S)  # it imports torch first
            case Moment.FIRST_STEP:
                return max(0.0, pace.first_step_s + random.uniform(-0.6, 0.3))
            case Moment.MID_EPOCH:
                return random.uniform(0, 0.7 * pace.train_s)
            case Moment.DEQUEUED:
                return random.uniform(0, 0.1)
            case Moment.MARKED:
                return random.uniform(0, 0.004)
        return random.uniform(0, 0.01)

    def rq_status(self, job: Job) -> str:
        """Return RQ's status of a job; empty when it knows nothing of it."""
        status = self.connection.hget(f"rq:job:{job.id}", "status")
        return status.decode() if isinstance(status, bytes) else status or ""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that is a worker."""

    @abstractmethod
    def is_training(self, process: psutil.Process) -> bool:
        """Whether a process of the scene trains."""

    @abstractmethod
    def call(self, job: Job) -> tuple[str, tuple[JsonValue, ...]]:
        """Return the function and the arguments by which RQ is told of a job."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Put a job into the queue, as producers do; may be called in several threads."""

    def enqueue(self, job: Job, **options: object) -> None:
        """Put a job into the queue by RQ's own means, whatever is there under its id."""
        function, arguments = self.call(job)
        queue = Queue(
            self.queue.name, connection=Redis.from_url(self.redis.url), serializer=self.queue.serializer
        )  # fmt: skip
        queue.enqueue(function, args=arguments, job_id=job.id, **options)

    @abstractmethod
    def resubmit(self) -> None:
        """Do what a producer can do after Redis has lost its data."""

    @abstractmethod
    def trainer(self) -> psutil.Process | None:
        """Return the process that calibrates or trains, while there is one."""

    @abstractmethod
    def watch(self, moment: Moment, job: Job, random: Random) -> Callable[[], bool]:
        """Return a function that says whether the moment has come."""

    def over(self, moment: Moment, job: Job) -> bool:  # noqa: ARG002 - for those that know more
        """Whether a moment that came has passed."""
        return self.ended(job)

    @abstractmethod
    def trained(self, job: Job) -> bool:
        """Whether any step of a job was done."""

    @abstractmethod
    def failure_problems(self, job: Job, reason: str) -> list[str]:
        """Return what is wrong with the way in which a job has failed that had to fail for `reason`."""

    @abstractmethod
    def ended(self, job: Job) -> bool:
        """Whether nothing more is to be expected of the job."""

    @abstractmethod
    def result(self, job: Job) -> str:
        """Return the sha256 of a finished job's weights."""

    @abstractmethod
    def pace(self, job: Job, whole_s: float) -> Pace:
        """Return how long a job took that has ended undisturbed, `whole_s` after its submission."""

    @abstractmethod
    def verdict(self, job: Job, struck: float) -> Verdict:
        """Judge a job that has ended, or has not in time, after a fault at the time `struck`."""


S = TypeVar("S", bound=Scene)


class Service(ABC, Generic[S]):
    """A service under test, and what its scenes share."""

    name: str

    def __init__(self, root: Path) -> None:
        self.root = root
        self.expected: Undisturbed | None = None
        self._numbers = count(1)
        self._idle: list[S] = []
        self._scenes: list[S] = []
        self._lock = threading.Lock()

    def learn(self) -> None:
        """Run one job undisturbed, to know what the disturbed ones shall come to."""
        with self.fresh() as scene:
            job, seen = scene.new_job(), False
            submitted = time.time()
            scene.submit(job)
            scene.add_container()
            while not scene.ended(job) and time.time() - submitted < scene.patience:
                scene.sleep(0.1)
                seen = seen or any(scene.is_training(process) for process in scene.strangers())
            whole_s = time.time() - submitted
            scene.problems += scene.verdict(job, time.time()).problems
            if scene.problems or not seen:
                raise RuntimeError(f"an undisturbed job of {self.name}: {scene.problems or 'not seen training'}")
            self.expected = Undisturbed(scene.pace(job, whole_s), scene.result(job))

    @contextlib.contextmanager
    def fresh(self) -> Iterator[S]:
        """Yield a scene of one's own without any container; its directory stays when promises were broken in it."""
        with self._new() as scene:
            yield scene
        if scene.intact:
            scene.discard()

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[S]:
        """Yield a scene with one running worker, used before by others unless promises were broken in it."""
        with self._lock:
            scene = self._idle.pop() if self._idle else None
        with contextlib.ExitStack() as stack:
            if scene is None:
                scene = self._new()
                scene.open()
                scene.add_container()
            stack.push(scene)
            yield scene
            if scene.intact:
                stack.pop_all()
                with self._lock:
                    self._idle.append(scene)

    def _new(self) -> S:
        scene = self._make(self.root / f"{self.name[0]}{next(self._numbers)}")
        with self._lock:
            self._scenes.append(scene)
        return scene

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for scene in self._scenes:  # those of an interrupted round, too
            scene.close()
        for scene in self._idle:
            scene.discard()

    @abstractmethod
    def _make(self, directory: Path) -> S:
        """Return a scene in `directory`."""


def hit(targets: Sequence[psutil.Process | None], number: signal.Signals) -> bool:
    """Send a signal to each process that still is; returns whether any was."""
    was = False
    for target in targets:
        if target is not None:
            with contextlib.suppress(psutil.Error):
                target.send_signal(number)
                was = True
    return was


def clean_environment() -> dict[str, str]:
    """Return this process's environment without settings of the service."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PREFLIGHT_", "REDIS_"))}
