"""One execution of a job: the stages it goes through, each supervised from here, and what is said on the way."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue

from calibration.cache import PlanCache
from calibration.choose import Choice, Options, Surroundings, choose_plan
from training import child as training_child
from training import prepare_child
from training.child import TrainingRequest
from training.errors import PreflightError
from training.plan import Plan
from training.prepare import prepared
from training.prepare_child import PrepareRequest
from training.process import Child, follow
from training.resources import Resources, detect
from training.spec import TrainSpec
from training.store import StoreInfo, read_info
from worker.settings import Settings, child_environment
from worker.sinks import Sink
from worker.wire import EVENT, LONGEST_TEXT, TrainJob


def nothing() -> None:
    """Do nothing between two looks at a child."""


class Keeper(Protocol):
    """Keeps the plan of a job for its later attempts."""

    def get(self) -> Plan | None:
        """Return the kept plan."""
        ...

    def put(self, plan: Plan) -> None:
        """Keep `plan`."""
        ...


class KeepsNothing:
    """For a run that has no later attempt."""

    def get(self) -> Plan | None:
        """Return nothing."""
        return None

    def put(self, plan: Plan) -> None:
        """Forget `plan`."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One execution: where it works, and whom it tells."""

    settings: Settings
    worker: str
    """Name of the process that runs it."""
    job_id: str
    attempt: int
    sinks: Sequence[Sink]
    directory: Path
    """For the files of the children; gone after the run."""
    tick: Callable[[], None] = nothing
    """Called many times a second; what it raises ends the run."""
    keeper: Keeper = field(default_factory=KeepsNothing)
    """Where a deterministic job keeps its plan."""
    seq: int = field(default=0, init=False)

    def say(self, kind: str, fields: dict[str, JsonValue]) -> None:
        """Send an event of type `kind` to every sink."""
        self.seq += 1
        header = {
            "type": kind, "seq": self.seq, "job_id": self.job_id, "attempt": self.attempt, "ts": time.time(),
        }  # fmt: skip
        # The texts come from exceptions and paths: too long a one shall not fail a job.
        texts = {name: value[:LONGEST_TEXT] for name, value in fields.items() if isinstance(value, str)}
        event = EVENT.validate_python({**fields, **texts, **header})
        for sink in self.sinks:
            sink.emit(event)

    def started(self, spec: TrainSpec) -> None:
        """Say who has taken what."""
        self.say(
            "job_started",
            {
                "worker": self.worker,
                "dataset": spec.dataset,
                "model": spec.model,
                "epochs": spec.epochs,
                "batch_size": spec.batch_size,
            },
        )

    def failed(self, error: PreflightError) -> PreflightError:
        """Say that the job failed, and return the error to raise."""
        error.told = True
        self.say("job_failed", {"reason": error.reason, "field": error.field, "message": error.message})
        return error

    def resources(self) -> Resources:
        """Detect what the container allows."""
        found = detect()
        self.say("resource_limits", limits(found))
        for warning in found.warnings:
            self.say("warning", {"message": warning})
        return found

    def dataset(self, name: str) -> StoreInfo:
        """Return the prepared data set, preparing it first where it is not; raises `DatasetError`."""
        began = time.perf_counter()
        info = prepared(name, self.settings.data_dir, self.settings.cache_dir) or self._prepare(name)
        self.say(
            "dataset_ready",
            {
                "dataset": info.name,
                "train_samples": info.train_count,
                "test_samples": info.test_count,
                "seconds": time.perf_counter() - began,
            },
        )
        return info

    def _prepare(self, name: str) -> StoreInfo:
        request = PrepareRequest(
            dataset=name, data_dir=self.settings.data_dir, cache_dir=self.settings.cache_dir, download=True
        )
        done = self._converse(prepare_child.MODULE, prepare_child.REQUEST.dump_json(request))
        return read_info(Path(str(done["path"])))

    def plan(self, job: TrainJob, spec: TrainSpec, resources: Resources, store: StoreInfo) -> Choice:
        """Choose the plan, unless one is kept from an earlier attempt, and say which and why."""
        kept = self.keeper.get() if spec.deterministic else None
        if kept is not None:
            choice = Choice(plan=kept, source="kept", why="a deterministic job keeps its first plan")
        else:
            choice = self._choose(job, spec, resources, store)
            if spec.deterministic:
                self.keeper.put(choice.plan)
        self.say(
            "calibration_winner",
            {
                **compared(choice.plan),
                "source": choice.source,
                "why": choice.why,
                "predicted_epoch_s": choice.predicted_epoch_s,
                "calibration_seconds": choice.calibration_seconds,
                "import_seconds": choice.import_seconds,
                "trials": choice.trials,
            },
        )
        return choice

    def _choose(self, job: TrainJob, spec: TrainSpec, resources: Resources, store: StoreInfo) -> Choice:
        options = Options(
            calibrate=job.calibrate,
            force=job.force_calibration,
            samples=job.calibration_samples,
            seconds=self.settings.calibration_seconds,
        )
        around = Surroundings(
            resources=resources,
            store=store,
            cache=PlanCache(self.settings.cache_dir),
            directory=self.directory,
            environment=child_environment(),
        )
        own = job.plan.complete(spec, resources.cores)
        return choose_plan(spec, own, around, options, self._calibrating, self.tick)

    def _calibrating(self, kind: str, fields: dict[str, JsonValue]) -> None:
        match kind, fields:
            case "trial", {"plan": dict(plan), **figures}:
                self.say("calibration_trial", {**{name: plan[name] for name in COMPARED}, **figures})
            case _, {"message": str(message)}:
                self.say("warning", {"message": message})

    def training(self, spec: TrainSpec, choice: Choice, resources: Resources, store: StoreInfo) -> dict[str, JsonValue]:
        """Train under the chosen plan and return the figures of `training_done`."""
        plan = choice.plan
        self.say(
            "training_config",
            {
                **compared(plan),
                "batch_size": spec.batch_size,
                "eval_batch": plan.eval_batch,
                "compile": plan.compile,
            },
        )
        self.say(
            "dataloader_config",
            {
                "num_workers": plan.loader_workers,
                "persistent_workers": plan.loader_workers > 0,
                "prefetch_factor": plan.prefetch_factor,
            },
        )
        facts: dict[str, JsonValue] = {
            "job_id": self.job_id,
            "attempt": self.attempt,
            "resources": {
                "cores": resources.cores, "quota": resources.quota, "memory_bytes": resources.memory_bytes,
                "cores_source": resources.cores_source, "memory_source": resources.memory_source,
            },
            "predicted_epoch_s": choice.predicted_epoch_s,
            "dataset": {"name": store.name, "train": store.train_count, "test": store.test_count},
        }  # fmt: skip
        request = TrainingRequest(
            spec=spec, plan=plan, store=store.path, facts=facts,
            artifact=self.settings.artifact_dir / self.job_id,
        )  # fmt: skip
        done = self._converse(training_child.MODULE, training_child.REQUEST.dump_json(request))
        figures = {**done, "predicted_epoch_s": choice.predicted_epoch_s}
        self.say("training_done", figures)
        return figures

    def _converse(self, module: str, body: bytes) -> dict[str, JsonValue]:
        """Run a child, pass on what it says, and return what it is done with."""
        with Child(module, body, self.directory, child_environment()) as child:
            for record in follow(child, self.tick):
                match record.kind:
                    case "progress":
                        self.say("progress", record.payload)
                    case "epoch":
                        self.say("epoch_done", record.payload)
                    case "done":
                        return record.payload
        raise AssertionError("follow() ends with `done` or raises")


COMPARED = ("threads", "interop", "micro_batch", "precision", "memory_format", "allocator")
"""Fields of a plan that events show."""


def compared(plan: Plan) -> dict[str, JsonValue]:
    """Return the fields of a plan that events show."""
    return {name: value for name, value in asdict(plan).items() if name in COMPARED}


def limits(found: Resources) -> dict[str, JsonValue]:
    """Return what `resource_limits` says, in a job's events and in the log of a starting worker."""
    return {
        "cpu_cores": found.cores,
        "quota": found.quota,
        "memory_mb": found.memory_bytes >> 20,
        "source": f"cpu: {found.cores_source}; memory: {found.memory_source}",
    }
