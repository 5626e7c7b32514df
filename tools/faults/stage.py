"""Stage of a fault: one Redis, the way to it, and workers, in one directory."""

import contextlib
import os
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final, Self

import psutil
from redis import Redis
from rq import Queue

from tools.faults.container import LOOK_EVERY, Container, hit
from tools.faults.jobs import Moment, Undisturbed, Verdict
from tools.faults.machines import Pair, Proxy, RedisServer, free_port

CHECKOUT: Final = Path(__file__).parents[2]
"""Folder in which workers find this package, which has functions and data sets of jobs."""
COUNT_EVERY: Final = 0.25
"""Seconds between two counts of the trainings that run."""
ORPHANS_AFTER: Final = 10.0
"""Seconds after a job's end, when nothing but the workers may be left."""
MARK: Final = "TMPDIR"
"""The variable by which a scene's processes are known, whatever their parent is by now."""


class Stage(ABC):
    """One Redis behind a proxy, and the containers of one service. Use as a context."""

    moments: frozenset[Moment]
    """Moments that this service has."""
    queue: Queue

    def __init__(self, directory: Path, base: Mapping[str, str], expected: Undisturbed | None, beyond: float) -> None:
        """Set the scene.

        Args:
            directory: for everything; made here.
            base: environment of the workers.
            expected: pace and result of an undisturbed job; None when this is the scene to find out.
            beyond: seconds beyond that after which a job that has not ended counts as lost.
        """
        self.directory = directory
        self.expected = expected
        self.patience = beyond + (expected.pace.whole_s if expected else beyond)
        self.redis = RedisServer(directory / "redis", port=free_port())
        self.proxy = Proxy(directory / "proxy.sock", self.redis.path)
        self._replica: RedisServer | None = None
        self.connection: Redis = Redis.from_url(self.redis.url)
        self.containers: list[Container] = []
        self.most_trainings = 0
        """Most trainings of one job seen at the same time since the last job was made."""
        self.emptied = False
        """Whether Redis lost its data since the last job was made."""
        self.most_at_once = 1
        """Most trainings of all jobs together seen at the same time since the last job was made."""
        self.at_once = 1
        """Jobs that the worker runs at a time."""
        self.damaged = 0
        """Checkpoints of the last job that were made unusable: so many intervals more may be lost."""
        self.problems: list[str] = []
        """Promises that were broken here about what happens."""
        self.late: list[str] = []
        """Promises that were broken here about how long it takes."""
        self.artifacts = directory / "artifacts"
        """Directory of the trained models."""
        self.site = directory / "site"
        """Directory of packages that the workers can import."""
        python_path = [str(self.site), str(CHECKOUT), *filter(None, [base.get("PYTHONPATH")])]
        self.environment = {**base, "PYTHONPATH": os.pathsep.join(python_path), MARK: str(directory / "tmp")}
        """Environment of the workers."""
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
        if self._replica is not None:
            self._replica.kill()

    def pair(self) -> Pair:
        """Return Redis with its replica, which is started the first time, once that has everything."""
        if self._replica is None:
            self._replica = RedisServer(self.directory / "replica", port=free_port())
            self._replica.directory.mkdir()
            self._replica.start()
        pair = Pair(self.redis, self._replica, self.proxy)
        pair.replicate()
        return pair

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
        """Start a worker in a separate container.

        Args:
            environment: set over that of the scene.
            before: a command that execs the worker.
            stdout: descriptor for its output; None: its log.
        """
        log = self.directory / f"worker-{len(self.containers)}.log"
        container = Container([*before, *self.command()], {**self.environment, **(environment or {})}, log)
        self.containers.append(container)
        container.start(stdout)
        return container

    @property
    def container(self) -> Container:
        """The first container, started when there is none."""
        return self.containers[0] if self.containers else self.add_container()

    def processes(self) -> list[psutil.Process]:
        """Return every living process that a worker of this scene is or has started."""
        mark = f"{MARK}={self.environment[MARK]}".encode()
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                # One that has ended and waits for its parent has no environment any more.
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(psutil.Process(pid))
        return found

    def strangers(self) -> list[psutil.Process]:
        """Return the scene's processes that are not its workers, nor kept by one of them."""
        kept = ((each.worker, each.standby, *each.companions) for each in self.containers)
        known = [process for processes in kept for process in processes]
        return [process for process in self.processes() if process not in known]

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
        trained = Counter(self.job_of(process) for process in self.strangers() if self.is_training(process))
        now = max(trained.values(), default=0)
        self.most_at_once = max(self.most_at_once, trained.total())
        # Twice in a row: one that is dying while the next begins is no second run.
        self.most_trainings = max(self.most_trainings, min(now, self._trainings))
        self._trainings = now

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command of a worker."""

    def job_of(self, training: psutil.Process) -> str:  # noqa: ARG002 - for those that run several
        """Return the job of a training, as far as that can be seen."""
        return ""

    @abstractmethod
    def is_training(self, process: psutil.Process) -> bool:
        """Whether a process of the scene trains."""
