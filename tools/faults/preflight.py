"""This service: real `preflight worker` processes, watched from outside through Redis and their files."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Final

import psutil
from pydantic import JsonValue
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue
from rq.serializers import JSONSerializer

from preflight import Client
from preflight.contract.plan import Plan
from preflight.redis import keys
from preflight.wire import (
    FUNCTION,
    AnyEvent,
    JobStarted,
    LoaderConfig,
    Progress,
    TrainingDone,
    TrainJob,
    TrainResult,
    unflatten,
)
from tools.faults.container import clean_environment
from tools.faults.event_checks import lost_seconds, sequence_problems
from tools.faults.jobs import CALIBRATION_S, FIRST_REPORT_S, Fields, Job, Moment, Pace, Undisturbed, Verdict
from tools.faults.scene import Scene
from tools.faults.service import Service
from training.artifacts.model_dir import MANIFEST, MODEL
from worker.config.settings import load, service_environment
from worker.jobs.stages.pending_extras import pending_attempts
from worker.state.paths import JOBS

BEYOND: Final = 120.0
"""Seconds beyond its undisturbed duration after which a job counts as lost."""
CHECKPOINT_SECONDS: Final = 1.0

SLACK_SECONDS: Final = 0.5
"""Seconds allowed beyond a checkpoint interval: a step, the write, and the error of this measurement."""
EXTRAS_SECONDS: Final = 120.0
"""Seconds after which the report of a finished job must exist: a worker looks once a minute for what others left."""
SETTLED_SECONDS: Final = 30.0
"""Seconds after which nothing of a finished job may be left in any queue or registry of RQ's."""
SIGNS: Final = {
    Moment.CALIBRATION: "dataset_ready", Moment.FIRST_STEP: "dataloader_config", Moment.MID_EPOCH: "progress",
}  # fmt: skip
"""Events after which a moment comes."""


class PreflightScene(Scene):
    """Workers of this service, all on one volume unless a container is given another."""

    moments = frozenset(Moment)

    def __init__(self, directory: Path, service: "Preflight", expected: Undisturbed | None) -> None:
        self._service = service
        self.settings = load(
            redis_url=f"unix://{directory / 'proxy.sock'}",
            data_dir=service.root / "data",
            cache_dir=service.root / "cache",
            artifact_dir=directory / "artifacts",
            state_dir=directory / "state",
            checkpoint_seconds=CHECKPOINT_SECONDS,
            calibration_seconds=CALIBRATION_S,
            log_format="json",
            **({"packing": "throughput", "max_jobs": service.at_once} if service.at_once > 1 else {}),
        )
        environment = {**clean_environment(), **service_environment(self.settings)}
        super().__init__(directory, environment, expected, BEYOND * service.at_once)
        self.at_once = service.at_once
        self.client = self._new_client()
        self.queue = Queue(self.settings.queue, connection=self.connection, serializer=JSONSerializer)
        self._text = Redis.from_url(self.redis.url, decode_responses=True)

    def command(self) -> list[str]:
        return [sys.executable, "-P", "-m", "worker.cli", "worker"]

    def is_training(self, process: psutil.Process) -> bool:
        try:
            return process.name() == "training" and process.status() != psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    def job_of(self, training: psutil.Process) -> str:
        """Return the job whose files a training has open."""
        jobs = str(self.settings.state_dir / JOBS) + os.sep
        with contextlib.suppress(OSError, psutil.Error):
            for file in Path(f"/proc/{training.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    opened = str(file.readlink())
                    if opened.startswith(jobs):
                        return opened.removeprefix(jobs).partition(os.sep)[0]
        return ""

    def trainer(self) -> psutil.Process | None:
        def is_child(process: psutil.Process) -> bool:
            try:
                return process.name() in ("training", "calibration")
            except psutil.Error:
                return False

        return next(filter(is_child, self.container.tree), None)

    def call(self, job: Job) -> tuple[str, tuple[JsonValue, ...]]:
        return FUNCTION, ({**job.fields, "job_id": job.id},)

    def submit(self, job: Job) -> None:
        self._new_client().enqueue(request(job), ensure=True)

    def _new_client(self) -> Client:
        return Client(self.redis.url, queue=self.settings.queue, outbox=self.directory / "outbox")

    def resubmit(self) -> None:
        with contextlib.suppress(RedisError):
            self.client.resubmit()

    def watch(self, moment: Moment, job: Job, random: Random) -> Callable[[], bool]:
        match moment:
            case Moment.DEQUEUED:
                return lambda: self.connection.llen(self.queue.key) == 0
            case Moment.CHECKPOINT:
                return self._changes(job, random.randint(1, 10))
            case Moment.ARTIFACT:
                return lambda: any((self.settings.artifact_dir / "~staging" / job.id).glob("*/*"))
            case Moment.MARKED:
                return (self.artifact(job) / MANIFEST).exists
        return lambda: SIGNS[moment] in self.kinds(job)

    def over(self, moment: Moment, job: Job) -> bool:
        return "calibration_winner" in self.kinds(job) if moment is Moment.CALIBRATION else super().over(moment, job)

    def _changes(self, job: Job, number: int) -> Callable[[], bool]:
        """Return a function that says whether the checkpoints of a job have been seen changing `number` times."""
        seen: list[list[str]] = [[]]

        def changed() -> bool:
            now = [path.name for path in self.checkpoints(job)]
            if now != seen[-1]:
                seen.append(now)
            return len(seen) > number

        return changed

    def checkpoints(self, job: Job) -> list[Path]:
        """Return the checkpoint files of a job, also those that are being written, oldest first."""
        found = (self.settings.state_dir / "jobs" / job.id).glob("*/*checkpoint-*")
        return sorted(found, key=lambda path: (int(path.parent.name), path.name.lstrip(".")))

    def artifact(self, job: Job) -> Path:
        """Return the directory of a job's model."""
        return self.settings.artifact_dir / job.id

    def events(self, job: Job) -> list[AnyEvent]:
        """Return the events of a job, in the order of the stream."""
        return [unflatten(record) for record in self._records(job)]

    def kinds(self, job: Job) -> list[str]:
        """Return the types of the events so far."""
        return [record["type"] for record in self._records(job)]

    def _records(self, job: Job) -> list[dict[str, str]]:
        stream = self._text.xrange(keys.events(job.id)) or []
        return [{str(name): str(value) for name, value in fields.items()} for _, fields in stream if fields]

    def trained(self, job: Job) -> bool:
        return "progress" in self.kinds(job)

    def failure_problems(self, job: Job, reason: str) -> list[str]:
        state = self.client.status(job.id)
        as_promised = (state.status, state.reason) == ("failed", reason)
        return [] if as_promised else [f"{state.status} {state.reason}: {state.message}, but must fail: {reason}"]

    def ended(self, job: Job) -> bool:
        match self.rq_status(job):
            case "finished":
                return True
            case "failed" | "stopped" | "canceled":
                return self.client.status(job.id).status in ("failed", "cancelled")
            case "" if self.emptied:  # RQ's hash of the job went with the data
                return self.client.status(job.id).status == "finished"
        return False

    def result(self, job: Job) -> str:
        result = self.client.result(job.id)
        return result.model_sha256 or "" if result else ""

    def pace(self, job: Job, whole_s: float) -> Pace:
        events = self.events(job)
        loading = next(event.ts for event in events if isinstance(event, LoaderConfig))
        first = next(event.ts for event in events if isinstance(event, Progress)) - FIRST_REPORT_S
        done = next(event.ts for event in events if isinstance(event, TrainingDone))
        return Pace(first_step_s=first - loading, train_s=done - first, whole_s=whole_s)

    def group_weights(self, workers: int, run: Callable[[], str]) -> str:
        """Return the sha256 of the weights that an undisturbed group of so many workers comes to, of one `run`."""
        return self._service.group_weights.get(workers) or self._service.keep_group_weights(workers, run())

    # --- the promises

    def verdict(self, job: Job, struck: float) -> Verdict:
        status, rq_status, result = self.client.status(job.id), self.rq_status(job), self.client.result(job.id)
        if not self.ended(job) or status.status != "finished" or result is None:
            found = f"{rq_status or 'gone'} for RQ, {status.status} for us: {status.reason} {status.message}"
            return Verdict(problems=(found,), lost=True)
        events = self.events(job)
        publications = self.kinds(job).count("training_done")
        lost_s = lost_seconds(events, struck, self.expected.pace.first_step_s if self.expected else 0.0)
        self.wait(lambda: not self._registry_problems(job), SETTLED_SECONDS)
        bound = (1 + self.damaged) * CHECKPOINT_SECONDS + SLACK_SECONDS
        self.wait(lambda: not self._extras_left(job), EXTRAS_SECONDS)
        orphans = self.orphans()
        problems = [
            *sequence_problems(events, whole=not self.emptied),
            *self._model_problems(job, result),
            *self._registry_problems(job),
            *([f"published {publications} times"] if publications != 1 else []),
            *([f"{self.most_trainings} trainings at once"] if self.most_trainings > 1 else []),
            *([f"{orphans} orphans"] if orphans else []),
        ]
        begun = (event.ts for event in events if isinstance(event, JobStarted) and event.ts > struck)
        return Verdict(
            problems=tuple(problems),
            late=(f"{lost_s:.2f} s of work lost",) if lost_s > bound else (),
            lost_s=lost_s,
            double_runs=max(0, self.most_trainings - 1),
            at_once=self.most_at_once,
            double_publications=max(0, publications - 1),
            orphans=orphans,
            takeover_s=next((at - struck for at in begun), None),
        )

    def _extras_left(self, job: Job) -> bool:
        """Whether a worker still has to make the report of a finished job, at idle priority."""
        return any(pending_attempts(self.settings.state_dir / JOBS / job.id))

    def _model_problems(self, job: Job, result: TrainResult) -> list[str]:
        """Return the problems of the model: result, manifest and file must be those of the undisturbed run."""
        artifact = self.artifact(job)
        manifest = json.loads((artifact / MANIFEST).read_text())["sha256"][MODEL]
        file = hashlib.sha256((artifact / MODEL).read_bytes()).hexdigest()
        if not result.model_sha256 == manifest == file:
            return ["result, manifest and model are of different trainings"]
        if "workers" in job.fields:
            return []  # a group comes to different weights
        if job.fields["deterministic"] and result.plan and file != self._service.weights(job.fields, result.plan):
            return ["other weights than undisturbed"]
        return []

    def _registry_problems(self, job: Job) -> list[str]:
        """Return a sentence for each place of RQ's in which a finished job is and must not be."""
        queue = self.queue
        places = {
            "queue": queue.get_job_ids(),
            "started registry": queue.started_job_registry.get_job_ids(cleanup=False),
            "failed registry": queue.failed_job_registry.get_job_ids(cleanup=False),
            "intermediate queue": [str(each) for each in self._text.lrange(queue.intermediate_queue_key, 0, -1)],
        }
        return [f"finished, but in the {place}" for place, ids in places.items() if job.id in ids]


class Preflight(Service[PreflightScene]):
    """This service, and what its scenes share."""

    name = "preflight"

    def __init__(self, root: Path, *, at_once: int = 1) -> None:
        """Keep everything in `root`; `at_once` jobs run at a time when a fault strikes."""
        super().__init__(root)
        self.at_once = at_once
        self._weights: dict[str, str] = {}
        self.group_weights: dict[int, str] = {}
        """Workers -> sha256 of the weights that a group of so many comes to."""
        self._lock = threading.Lock()

    def weights(self, fields: Fields, plan: Plan) -> str:
        """Return the sha256 of the weights that a job comes to under a plan when nothing goes wrong."""
        job = json.dumps({**fields, "calibrate": False, "force_calibration": False, "plan": asdict(plan)})
        with self._lock:
            if job not in self._weights:
                self._weights[job] = self._train(job)
            return self._weights[job]

    def keep_group_weights(self, workers: int, sha256: str) -> str:
        """Keep the weights of an undisturbed group, and return them."""
        with self._lock:
            self.group_weights[workers] = sha256
        return sha256

    def _train(self, job: str) -> str:
        own = {name: str(self.root / name) for name in ("data", "cache", "artifact", "state")}
        done = subprocess.run(
            [sys.executable, "-P", "-m", "worker.cli", "train", "--json", "--file", "-"],
            env={**clean_environment(), **{f"PREFLIGHT_{name.upper()}_DIR": path for name, path in own.items()}},
            input=job.encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        return TrainResult.model_validate_json(done.stdout).model_sha256 or ""

    def _make(self, directory: Path) -> PreflightScene:
        return PreflightScene(directory, self, self.expected)


def request(job: Job) -> TrainJob:
    """Return the job as it is sent."""
    return TrainJob.model_validate({**job.fields, "job_id": job.id})
