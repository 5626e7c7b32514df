"""Jobs on a stage: submitting, waiting for a moment, judging."""

import time
from abc import abstractmethod
from collections.abc import Callable
from random import Random
from typing import Final

import psutil
from pydantic import JsonValue
from redis import Redis
from rq import Queue

from tools.faults.container import LOOK_EVERY
from tools.faults.jobs import BRIEF, CALIBRATION_S, FIELDS, Job, Moment, Pace, Verdict
from tools.faults.stage import Stage

LOOK_CLOSELY: Final = 0.001
"""Seconds between two looks for a moment that lasts milliseconds."""
RESUBMIT_EVERY: Final = 2.0
"""Seconds between two looks of a producer at its outbox."""


class Scene(Stage):
    """A stage on which jobs of one service run."""

    def new_job(self, **fields: JsonValue) -> Job:
        """Return a job of the usual size, with `fields` over the usual ones; it is not submitted."""
        self.most_trainings, self.most_at_once, self.emptied, self.damaged = 0, 1, False, 0
        return Job(f"{self.directory.name}-{next(self._jobs)}", {**FIELDS, **fields})

    def further_jobs(self) -> list[Job]:
        """Return the jobs of the usual size that run at the same time as the one that is struck; not submitted."""
        return [Job(f"{self.directory.name}-{next(self._jobs)}", FIELDS) for _ in range(self.at_once - 1)]

    def wait_for(self, moment: Moment, job: Job, random: Random) -> bool:
        """Wait for a moment of a job; returns False when the job ended before it came."""
        opens, every = self.watch(moment, job, random), LOOK_CLOSELY if moment in BRIEF else LOOK_EVERY
        came: list[bool] = []  # kept, as a second look may come too late for it

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
    def call(self, job: Job) -> tuple[str, tuple[JsonValue, ...]]:
        """Return the function and the arguments with which RQ enqueues a job."""

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
        """Return the problems with the failure of a job that had to fail for `reason`."""

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
