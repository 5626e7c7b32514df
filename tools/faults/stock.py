"""Stock RQ: `rq worker` as it comes, and a job function as people write them. That function is here, too."""

import hashlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

import psutil
from pydantic import JsonValue, TypeAdapter
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job as RqJob

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.wire import JOB_TIMEOUT, TrainJob
from tools.faults.container import clean_environment
from tools.faults.jobs import FIELDS, FIRST_REPORT_S, Job, Moment, Pace, Undisturbed, Verdict
from tools.faults.scene import Scene
from tools.faults.service import Service
from training.data.prepare import prepare

ROOT: Final = Path(__file__).parents[2]
BEYOND: Final = 60.0
"""Seconds beyond its undisturbed duration after which a job counts as lost."""
SIGNS: Final = {
    Moment.FIRST_STEP: "begin", Moment.MID_EPOCH: "progress", Moment.ARTIFACT: "saving", Moment.MARKED: "saved",
}  # fmt: skip
"""Kinds of the lines that a run writes when a moment comes."""
MOMENTS: Final = frozenset({Moment.DEQUEUED, *SIGNS})


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a trace: a thing that a run of a job has done."""

    kind: str
    pid: int
    t: float


LINE = TypeAdapter(Line)
SPEC = TypeAdapter(TrainSpec)
PLAN = TypeAdapter(Plan)


class Trace:
    """File of the things that the runs of a job have done; `fit` reports to it, too."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, kind: str, payload: object = None, *, durable: bool = False) -> None:  # noqa: ARG002 - Report's
        """Append a line; the figures of a report are of no interest."""
        with self.path.open("ab") as file:
            file.write(LINE.dump_json(Line(kind, os.getpid(), time.time())) + b"\n")

    def read(self) -> list[Line]:
        """Return the lines so far."""
        try:
            return [LINE.validate_json(line) for line in self.path.read_bytes().splitlines()]
        except FileNotFoundError:
            return []


def train(spec: str, plan: str, store: str, traces: str, model: str) -> str:
    """Train in this process, write the weights, return their sha256: the whole job."""
    trace = Trace(Path(traces))
    trace.write("begin")
    from safetensors.torch import save

    from training.checkpoints.checkpointer import Checkpointer
    from training.data.dataset_store import open_dataset
    from training.loop.progress import ProgressObserver
    from training.loop.trainer import fit
    from training.step.train_step import TrainStep, prepare_process

    some_plan, data = PLAN.validate_json(plan), open_dataset(Path(store))
    prepare_process(some_plan)
    step = TrainStep(SPEC.validate_json(spec), some_plan, data.info.shape, data.info.classes)
    with Checkpointer(step, data.info, trace) as keeps_nothing:
        observer = ProgressObserver(step, keeps_nothing.resume(()), trace)
        fit(step, data, observer, lambda: False, keeps_nothing)
    weights = save({name: value.contiguous() for name, value in step.model.state_dict().items()})
    trace.write("saving")
    Path(model).write_bytes(weights)
    trace.write("saved")
    return hashlib.sha256(weights).hexdigest()


class StockScene(Scene):
    """`rq worker` with its defaults: its own worker class, pickle, no retries."""

    moments = MOMENTS

    def __init__(self, directory: Path, store: Path, expected: Undisturbed | None) -> None:
        environment = {**clean_environment(), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}"}
        super().__init__(directory, environment, expected, BEYOND)
        self._store = store
        self.queue = Queue(connection=self.connection)

    def command(self) -> list[str]:
        return [str(Path(sys.executable).parent / "rq"), "worker", "--url", self.proxy.url]

    def is_training(self, process: psutil.Process) -> bool:
        return process in self.strangers()  # work-horses, whatever their parent is by now

    def trainer(self) -> psutil.Process | None:
        return self.container.supervisor

    def call(self, job: Job) -> tuple[str, tuple[JsonValue, ...]]:
        request = TrainJob.model_validate(job.fields)
        spec = request.spec()
        return f"{train.__module__}.{train.__name__}", (
            SPEC.dump_json(spec).decode(), PLAN.dump_json(request.plan.complete(spec, 1)).decode(),
            str(self._store), str(self._trace(job).path), str(self.artifacts / f"{job.id}.safetensors"),
        )  # fmt: skip

    def submit(self, job: Job) -> None:
        self.enqueue(job, job_timeout=JOB_TIMEOUT)  # RQ's own would be another fault

    def resubmit(self) -> None:
        """Do nothing: without an outbox a producer cannot know."""

    def watch(self, moment: Moment, job: Job, random: Random) -> Callable[[], bool]:  # noqa: ARG002 - Scene's
        if moment is Moment.DEQUEUED:
            return lambda: self.connection.llen(self.queue.key) == 0
        trace, sign = self._trace(job), SIGNS[moment]
        return lambda: any(line.kind == sign for line in trace.read())

    def trained(self, job: Job) -> bool:
        return any(line.kind == "progress" for line in self._trace(job).read())

    def failure_problems(self, job: Job, reason: str) -> list[str]:
        status, why = self.rq_status(job), self._why(job)
        if status != "failed":
            return [f"{status}, but must fail: {reason}"]
        return ["failed without a reason"] if "terminated unexpectedly" in why else []

    def ended(self, job: Job) -> bool:
        return self.rq_status(job) in ("finished", "failed", "stopped", "canceled")

    def result(self, job: Job) -> str:
        found = self._fetch(job)
        return str(found.return_value()) if found else ""

    def pace(self, job: Job, whole_s: float) -> Pace:
        at = {line.kind: line.t for line in reversed(self._trace(job).read())}  # the first of each kind
        return Pace(
            first_step_s=at["progress"] - at["begin"] - FIRST_REPORT_S,
            train_s=at["saving"] - at["progress"] + FIRST_REPORT_S,
            whole_s=whole_s,
        )

    def verdict(self, job: Job, struck: float) -> Verdict:
        lines = self._trace(job).read()
        runs = [[line for line in lines if line.pid == pid] for pid in dict.fromkeys(line.pid for line in lines)]
        doubles = sum(one[-1].t > other[0].t or one[-1].kind == "saved" for one, other in pairwise(runs))
        anew = next((run[0].t for run in runs[1:] if run[0].t > struck), None)
        status, ended, problems = self.rq_status(job) or "gone", self.ended(job), []
        if status != "finished":
            problems.append(f"{status}: {self._why(job)}" if ended else f"still {status} after {self.patience:.0f} s")
        elif self.expected and job.fields == FIELDS and self.result(job) != self.expected.sha256:
            problems.append("other weights than undisturbed")
        elif job.id in self.queue.started_job_registry.get_job_ids(cleanup=False):
            problems.append("finished, but in the started registry")
        if doubles:
            problems.append(f"run {doubles} times too often")
        orphans = self.orphans() if ended else 0
        if orphans:
            problems.append(f"{orphans} orphans")
        return Verdict(
            problems=tuple(problems),
            lost=status != "finished",
            lost_s=None if status != "finished" else 0.0 if anew is None else struck - runs[0][0].t,
            double_runs=doubles,
            orphans=orphans,
            takeover_s=None if anew is None else anew - struck,
        )

    def _trace(self, job: Job) -> Trace:
        return Trace(self.directory / f"{job.id}.trace")

    def _fetch(self, job: Job) -> RqJob | None:
        try:
            return RqJob.fetch(job.id, connection=self.connection)
        except NoSuchJobError:
            return None

    def _why(self, job: Job) -> str:
        """Return the last line that RQ keeps of a failure, without the time in it."""
        found = self._fetch(job)
        result = found.latest_result() if found else None
        last = ((result.exc_string if result else "") or "").strip().rpartition("\n")[2]
        return last.partition(", at ")[0].rstrip("; ")


class Stock(Service[StockScene]):
    """Stock RQ with everything that its scenes share."""

    name = "stock RQ"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._store = prepare("digits", root / "cache", root / "cache", download=False).path

    def _make(self, directory: Path) -> StockScene:
        return StockScene(directory, self._store, self.expected)
