"""One execution of a job: the stages it goes through, each supervised from here, and what is said on the way."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from pydantic import JsonValue, TypeAdapter, ValidationError

from calibration.cache.plan_cache import PlanCache
from calibration.choose import Choice, Options, Surroundings, choose_plan
from calibration.result import Finding
from training.artifacts import onnx_child
from training.artifacts.onnx_child import ONNX, OnnxRequest
from training.artifacts.publish import adopt, publish, read_manifest
from training.checkpoints.format import Found, candidates
from training.config.plan import Plan
from training.config.recipes import concern
from training.config.spec import TrainSpec
from training.data import prepare_child
from training.data.dataset_store import StoreInfo, read_info
from training.data.prepare import prepared
from training.data.prepare_child import PrepareRequest
from training.data.split import split
from training.errors import (
    ArtifactError,
    Cancelled,
    ChildFailed,
    ChildKilled,
    InvalidConfig,
    OutOfMemory,
    PreflightError,
)
from training.loop import child as training_child
from training.loop.child import TrainingRequest
from training.loop.prediction import Prediction
from training.process.child import TICK_SECONDS, Child, follow
from training.process.journal import Record
from training.process.launch import environment_for
from training.system.digests import Digests
from training.system.resources import Resources, detect
from worker.cli.formatting.explanation import facts
from worker.config.settings import Settings, child_environment
from worker.events.redis_sink import Sink
from worker.exporters.base import ExportRequest, exports
from worker.jobs.paths import Places
from worker.queue.admission.admit import within_samples
from worker.report import child as report_child
from worker.report import request as report
from worker.report.request import REPORT, Losses, ReportRequest
from worker.wire import EVENT, LONGEST_TEXT, CalibrationTrial, TrainJob, TrainResult

STOP_PATIENCE: Final = 20.0
"""Seconds that a child which was asked to stop gets for its step and its checkpoint; then the last one counts."""
MOST_HALVINGS: Final = 3
"""How often an attempt goes on with half the micro-batch after memory ran out."""
MOST_DEATHS: Final = 3
"""Kills of a training child in a row, without a checkpoint between them, that an attempt survives."""


ALIKE: Final = ("cores", "quota", "memory_bytes")
"""What makes two containers alike for a plan."""

PLAN = TypeAdapter(Plan)
PREDICTION = TypeAdapter(Prediction)


class Interrupted(Exception):
    """The worker was told to stop: the job goes back into its queue."""


class Watch(Protocol):
    """Looks after a run while it waits for a child."""

    def look(self) -> None:
        """Keep the run alive; raises what shall end it."""
        ...

    def pulse(self) -> None:
        """Keep the run alive while it is being ended."""
        ...

    def further(self) -> None:
        """Hear that the run has come further than any attempt before it."""
        ...

    def certain(self) -> None:
        """Return once it is certain that no newer attempt has taken over; raises where one has."""
        ...


class Unwatched:
    """For a run that nobody can end or take over."""

    def look(self) -> None:
        """Let it go on."""

    def pulse(self) -> None:
        """Let it go on."""

    def further(self) -> None:
        """Hear it."""

    def certain(self) -> None:
        """There is no other."""


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
    places: Places
    watch: Watch = field(default_factory=Unwatched)
    keeper: Keeper = field(default_factory=KeepsNothing)
    """Where a deterministic job keeps its plan."""
    seq: int = field(default=0, init=False)
    saved: int = field(default=0, init=False)
    """Checkpoints made in this run."""
    losses: Losses = field(default_factory=Losses, init=False)
    """Of the training, for the report."""
    digests: Digests = field(init=False)
    """The data and checkpoints that were verified in this run."""

    def __post_init__(self) -> None:
        self.digests = Digests(alive=self.watch.look)

    def say(self, kind: str, fields: dict[str, JsonValue], result: TrainResult | None = None) -> None:
        """Send an event of type `kind` to every sink, the job's result with the one that finishes it."""
        self.seq += 1
        header = {
            "type": kind, "seq": self.seq, "job_id": self.job_id, "attempt": self.attempt, "ts": time.time(),
        }  # fmt: skip
        # The texts come from exceptions and paths: too long a one shall not fail a job, and one may hold a password.
        texts = {name: value[:LONGEST_TEXT] for name, value in fields.items() if isinstance(value, str)}
        if "message" in texts:
            texts["message"] = self.settings.scrubbed(texts["message"])[:LONGEST_TEXT]
        event = EVENT.validate_python({**fields, **texts, **header})
        for sink in self.sinks:
            sink.emit(event, result)

    def started(self, job: TrainJob, spec: TrainSpec) -> None:
        """Say who has taken what."""
        self.say(
            "job_started",
            {
                "worker": self.worker,
                "dataset": spec.dataset,
                "recipe": job.recipe,
                "model": spec.model,
                "epochs": spec.epochs,
                "batch_size": spec.batch_size,
            },
        )

    def cancelled(self, error: Cancelled) -> TrainResult:
        """Say that the job was stopped on request, and return its result."""
        self.say("job_cancelled", {"message": error.message})
        return TrainResult(job_id=self.job_id, attempt=self.attempt, status="cancelled")

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

    def dataset(self, job: TrainJob) -> StoreInfo:
        """Return the prepared data set, preparing it first where it is not.

        Raises:
            DatasetError: it cannot be had.
            InvalidConfig: the job would see more samples than the service allows, or it has too few for a recipe.
        """
        name = job.dataset
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
        spec = job.spec()
        within_samples(spec, info.train_count, self.settings)
        if job.recipe is not None:
            parts = split(spec, info)
            doubt = concern(job.recipe, parts.train, spec.epochs * parts.steps)
            if doubt is not None:
                self.say("warning", {"message": doubt})
        return info

    def _prepare(self, name: str) -> StoreInfo:
        request = PrepareRequest(
            dataset=name, data_dir=self.settings.data_dir, cache_dir=self.settings.cache_dir, download=True
        )
        done = self._converse(prepare_child.MODULE, prepare_child.REQUEST.dump_json(request), child_environment())
        return read_info(Path(str(done["path"])))

    def plan(self, job: TrainJob, spec: TrainSpec, resources: Resources, store: StoreInfo) -> Choice:
        """Choose the plan, unless one goes on from an earlier attempt, and say which and why."""
        found = self._found(spec, store)
        choice = self._kept(spec, resources, found) or self._choose(job, spec, resources, store)
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
                "cache": choice.cache,
                **(found_out(choice.finding) if choice.finding else {}),
            },
        )
        return choice

    def _found(self, spec: TrainSpec, store: StoreInfo) -> list[Found]:
        """Return the checkpoints that this training can go on from, best first; say which cannot be used."""
        found, damaged = candidates(self.places.job, spec, store, self.digests)
        for message in damaged:
            self.say("warning", {"message": message})
        return found

    def _kept(self, spec: TrainSpec, resources: Resources, found: Sequence[Found]) -> Choice | None:
        """Return the plan of an earlier attempt where this one shall run under it too."""
        first = found[0] if found else None
        if spec.deterministic:
            plan = first.plan if first else self.keeper.get()
            if plan is None:
                return None
            return Choice(plan=plan, source="kept", why="a deterministic job keeps its first plan")
        if first is None:
            return None
        there, here = first.facts.get("resources"), container(resources)
        changed = [name for name in ALIKE if not isinstance(there, dict) or there.get(name) != here[name]]
        if changed:
            self.say("warning", {"message": f"the container is another one than the checkpoint's ({', '.join(changed)} "
                                            "changed); a plan is chosen anew"})  # fmt: skip
            return None
        predicted = first.facts.get("predicted_epoch_s")
        return Choice(
            plan=first.plan, source="kept", why="the checkpoint was made in a container like this one",
            predicted_epoch_s=predicted if isinstance(predicted, float) else None,
            prediction=_prediction(first.facts.get("prediction")),
        )  # fmt: skip

    def _choose(self, job: TrainJob, spec: TrainSpec, resources: Resources, store: StoreInfo) -> Choice:
        options = Options(
            calibrate=job.calibrate,
            force=job.force_calibration,
            samples=job.calibration_samples,
            seconds=job.calibration_seconds or self.settings.calibration_seconds,
            knobs=job.calibration_knobs,
        )
        around = Surroundings(
            resources=resources,
            store=store,
            cache=PlanCache(self.settings.cache_dir),
            directory=self.places.attempt,
            environment=child_environment(),
        )
        own = job.plan.complete(spec, resources.cores)

        def emit(kind: str, fields: dict[str, JsonValue]) -> None:
            self._calibrating(spec, kind, fields)

        return choose_plan(spec, own, around, options, emit, self.watch.look)

    def _calibrating(self, spec: TrainSpec, kind: str, fields: dict[str, JsonValue]) -> None:
        match kind, fields:
            case "trial", {"plan": dict()}:
                self.say("calibration_trial", told(spec, fields))
            case _, {"message": str(message)}:
                self.say("warning", {"message": message})

    def training(
        self, job: TrainJob, spec: TrainSpec, choice: Choice, resources: Resources, store: StoreInfo
    ) -> TrainResult:
        """Train under the chosen plan, publish the model and say so.

        A child that is killed goes on from its last checkpoint; one that is killed for memory in smaller pieces.

        Raises:
            OutOfMemory: smaller pieces did not help.
            ChildFailed: the child fails again and again.
            PreflightError: whatever else the child recorded.
        """
        plan, halvings, deaths = choice.plan, 0, 0
        began = time.monotonic()
        while True:
            saved = self.saved
            try:
                done = self._train(job, spec, plan, choice, resources, store)
                break
            except OutOfMemory as error:
                smaller = halved(plan)
                if smaller is None or halvings == MOST_HALVINGS:
                    tried = (
                        f"{halvings} times smaller micro-batches did not help" if halvings else "it cannot be halved"
                    )
                    raise OutOfMemory(f"{error.message}; micro_batch is {plan.micro_batch}, {tried}") from error
                plan, halvings = smaller, halvings + 1
                message = f"{error.message}; going on with micro_batch {plan.micro_batch}" + (
                    ", so that the weights will differ from those of an undisturbed run" if spec.deterministic else ""
                )
                self.say("out_of_memory", {"message": message, "micro_batch": plan.micro_batch,
                                           "eval_batch": plan.eval_batch})  # fmt: skip
            except ChildKilled as error:
                deaths = 1 if self.saved > saved else deaths + 1
                if deaths == MOST_DEATHS:
                    raise
                self.say("warning", {"message": f"{error.message}; going on from the last checkpoint"})
        training_s = time.monotonic() - began
        figures = {**done, "artifact": str(self.places.artifact), "predicted_epoch_s": choice.predicted_epoch_s}
        if job.onnx and self._as_onnx(plan, store):
            figures["onnx"] = str(self.places.artifact / ONNX)
        if self._reported(
            ReportRequest(
                job_id=self.job_id,
                artifact=self.places.staged,
                store=store.path,
                why=choice.why,
                facts=facts(choice, spec, resources),
                finding=choice.finding,
                prediction=choice.prediction if plan == choice.plan else None,
                calibration_s=choice.calibration_seconds + choice.import_seconds,
                training_s=training_s,
                losses=tuple(self.losses.points),
            )
        ):
            figures["report"] = str(self.places.artifact / REPORT)
        self._publish()
        return self._finished(figures, plan)

    def _publish(self) -> None:
        """Put the model in place.

        Raises:
            ArtifactError: it cannot be put there, or the model of a later attempt is there.
            Interrupted, Superseded: as the watch finds.
        """
        self.watch.certain()
        if not publish(self.places.staged, self.places.artifact, self.watch.look):
            self.watch.certain()  # raises, as this process was stopped since the last time
            raise ArtifactError(
                f"{self.places.artifact} holds the model of a later attempt than {self.attempt}, which is kept; "
                "look at it, or delete it and send the job again"
            )

    def _train(
        self, job: TrainJob, spec: TrainSpec, plan: Plan, choice: Choice, resources: Resources, store: StoreInfo
    ) -> dict[str, JsonValue]:
        """Run one training child, from the newest checkpoint on, and return the figures it is done with."""
        self.say("training_config", {**compared(plan), "batch_size": spec.batch_size})
        self.say(
            "dataloader_config",
            {
                "num_workers": plan.loader_workers,
                "persistent_workers": plan.loader_workers > 0,
                "prefetch_factor": plan.prefetch_factor,
            },
        )
        kept: dict[str, JsonValue] = {
            "job_id": self.job_id,
            "attempt": self.attempt,
            "request": job.digest(),
            "resources": container(resources),
            "predicted_epoch_s": choice.predicted_epoch_s,
            "prediction": asdict(choice.prediction) if choice.prediction else None,
            "dataset": {"name": store.name, "train": store.train_count, "test": store.test_count},
        }
        resume = tuple(found.path for found in self._found(spec, store))
        request = TrainingRequest(
            spec=spec, plan=plan, store=store.path, facts=kept, artifact=self.places.staged,
            checkpoints=self.places.attempt, checkpoint_seconds=self.settings.checkpoint_seconds,
            resume=resume, verified=self.digests.known(),
            max_parameters=self.settings.max_parameters,
            prediction=choice.prediction if plan == choice.plan else None, profile=job.profile, trace=job.trace,
        )  # fmt: skip
        body = training_child.REQUEST.dump_json(request)
        return self._converse(training_child.MODULE, body, environment_for(plan, child_environment()))

    def _as_onnx(self, plan: Plan, store: StoreInfo) -> bool:
        """Leave the staged model as ONNX beside it; returns whether it is there."""
        artifact = self.places.staged
        request = OnnxRequest(artifact=artifact, target=artifact / ONNX, store=store.path, threads=plan.threads)
        body = onnx_child.REQUEST.dump_json(request)
        return self._added(ONNX, onnx_child.MODULE, body, child_environment())

    def _reported(self, request: ReportRequest) -> bool:
        """Leave a page about the run beside the staged model; returns whether it is there."""
        if self.settings.report == "off":
            return False
        lacking = report.missing()
        if lacking is not None:
            self.say("warning", {"message": lacking})
            return False
        # matplotlib looks through all fonts once, and remembers here what it found.
        environment = {**child_environment(), "MPLCONFIGDIR": str(self.settings.cache_dir / "matplotlib")}
        body = report.REQUEST.dump_json(request)
        return self._added(REPORT, report_child.MODULE, body, environment, seconds=report.LONGEST)

    def _added(
        self, name: str, module: str, body: bytes, environment: Mapping[str, str], seconds: float = math.inf
    ) -> bool:
        """Run a child that adds `name` to a trained model; that it fails is a warning, and the model is none the worse.

        What interrupts it (a redeploy, a cancellation) ends the run as in training: all epochs are in a checkpoint.
        """
        try:
            self._converse(module, body, environment, seconds)
        except Cancelled:
            raise
        except (PreflightError, OSError) as error:
            self.say("warning", {"message": f"there is no {name}: {error}"})
            return False
        return True

    def _converse(
        self, module: str, body: bytes, environment: Mapping[str, str], seconds: float = math.inf
    ) -> dict[str, JsonValue]:
        """Run a child for at most so many seconds, pass on what it says, and return what it is done with."""
        deadline = time.monotonic() + seconds

        def look() -> None:
            self.watch.look()
            if time.monotonic() > deadline:
                raise ChildFailed(f"the {module} process took longer than {seconds:g} s")

        worthwhile = False
        with Child(module, body, self.places.attempt, environment) as child:
            try:
                for record in follow(child, look):
                    if record.kind == "done":
                        return record.payload
                    worthwhile |= record.kind == "progress"
                    self._pass_on(record)
            except (Interrupted, Cancelled, KeyboardInterrupt):
                # Before its first window is over a child has little to save, and may be importing torch for seconds.
                if worthwhile:
                    self._await_checkpoint(child)
                raise
        raise AssertionError("follow() ends with `done` or raises")

    def _pass_on(self, record: Record) -> None:
        payload = record.payload
        match record.kind:
            case "progress":
                self.losses.hear(payload)
                self.say("progress", payload)
            case "epoch":
                self.say("epoch_done", payload)
            case "prediction":
                self.say("prediction_checked", payload)
            case "profile":
                self.say("training_profile", payload)
            case "adapted":
                self.say("plan_adapted", payload)
            case "warning":
                self.say("warning", {"message": payload["message"]})
            case "resumed":
                self.say("job_resumed", {"epochs_done": payload["epoch"], "steps_done": payload["step"]})
            case "checkpoint":
                self.saved += 1
                self.watch.further()
                self.say("checkpoint_saved", {"epochs_done": payload["epoch"], "steps_done": payload["step"],
                                              "seconds": payload["seconds"], "bytes": payload["bytes"]})  # fmt: skip

    def _await_checkpoint(self, child: Child) -> None:
        """Ask a child to stop, and wait until it has ended its step and saved."""
        child.ask_to_stop()
        deadline = time.monotonic() + STOP_PATIENCE
        while child.running() and time.monotonic() < deadline:
            self.watch.pulse()
            child.wait(TICK_SECONDS)
        for record in child.records():
            if record.kind != "fail":
                self._pass_on(record)

    def adopted(self, job: TrainJob) -> TrainResult | None:
        """Return the result of a model that an earlier attempt published before it died, and say that it is done.

        Raises:
            InvalidConfig: the model is that of another request; it stays as it is.
        """
        spec = job.spec()
        manifest = read_manifest(self.places.artifact, self.watch.look) or {}
        if manifest.get("request", job.digest()) != job.digest():
            raise self.failed(
                InvalidConfig(
                    f"job_id is {self.job_id!r}, under which {self.places.artifact} holds another request's model; "
                    "enqueue this one under an id of its own, or move that model away",
                    field="job_id",
                )
            )
        match manifest:
            case {
                "job_id": self.job_id, "spec": dict(trained), "plan": dict(plan), "metrics": dict(metrics),
                "sha256": {"model.safetensors": str(digest)},
            } if trained == asdict(spec):  # fmt: skip
                try:
                    kept = PLAN.validate_json(json.dumps(plan))
                except ValidationError:
                    return None  # of another version
                if not adopt(self.places.artifact, self.places.staged, manifest, self.attempt, self.watch.look):
                    return self.adopted(job)  # another attempt has just replaced it
                figures = {
                    **metrics, "artifact": str(self.places.artifact), "model_sha256": digest,
                    "predicted_epoch_s": manifest.get("predicted_epoch_s"),
                    **{kind: str(path) for kind, path in (("report", self.places.artifact / REPORT),
                                                          ("onnx", self.places.artifact / ONNX)) if path.is_file()},
                }  # fmt: skip
                return self._finished(figures, kept)
        return None

    def _exported(self) -> dict[str, JsonValue]:
        """Send the published model wherever else it shall be, and return what that adds to the result.

        The job is finished with or without: a place that does not take the model is a warning.

        Raises:
            Cancelled, Interrupted, Superseded: as the watch finds; an attempt that adopts the model sends it again.
        """
        added: dict[str, JsonValue] = {}
        request = ExportRequest(job_id=self.job_id, artifact=self.places.artifact, job=self.places.job)
        for export in exports(self.settings):
            self.watch.certain()
            try:
                added |= export.send(request, self.places.attempt, self.watch.look)
            except Cancelled:
                raise
            except PreflightError as error:
                message = (
                    f"the model was not sent to {export.where} ({error.message}); it is kept in "
                    f"{self.places.artifact}, and `preflight upload {self.job_id}` sends it"
                )
                self.say("warning", {"message": message})
        return added

    def _finished(self, figures: dict[str, JsonValue], plan: Plan) -> TrainResult:
        result = TrainResult.model_validate(
            {**figures, "job_id": self.job_id, "attempt": self.attempt, "status": "finished", "plan": plan}
        )
        added = self._exported()
        result = result.model_copy(update=added)
        told = {name: value for name, value in {**figures, **added}.items() if name != "profile"}
        self.say("training_done", told, result)
        return result


COMPARED = (
    "threads", "interop", "micro_batch", "precision", "memory_format", "allocator", "eval_batch", "loader_workers",
    "affinity", "compile", "device",
)  # fmt: skip
"""Fields of a plan that events show."""


def compared(plan: Plan) -> dict[str, JsonValue]:
    """Return the fields of a plan that events show."""
    return {name: value for name, value in asdict(plan).items() if name in COMPARED}


def told(spec: TrainSpec, trial: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return what `calibration_trial` says of a trial, whose fields are those of `calibration.result.Trial`."""
    plan, step_s = trial["plan"], trial.get("step_s")
    shown = {name: value for name, value in trial.items() if name in CalibrationTrial.model_fields}
    return {
        **({name: plan[name] for name in COMPARED} if isinstance(plan, dict) else {}),
        "won": trial.get("verdict") == "won",
        "samples_per_s": spec.batch_size / step_s if isinstance(step_s, float) and step_s > 0 else None,
        **shown,
    }


def _prediction(fact: JsonValue) -> Prediction | None:
    """Return the prediction that a checkpoint keeps; None where it keeps none, or one of another version."""
    try:
        return PREDICTION.validate_json(json.dumps(fact))
    except ValidationError:
        return None


def found_out(finding: Finding) -> dict[str, JsonValue]:
    """Return what `calibration_winner` says of the finding behind a choice."""
    return {
        "predicted_low_s": finding.prediction.low_s,
        "predicted_high_s": finding.prediction.high_s,
        "confidence": finding.confidence,
        "ratio": finding.confirmation.ratio if finding.confirmation else None,
        "max_feasible": finding.memory.max_feasible if finding.memory else None,
    }


def container(found: Resources) -> dict[str, JsonValue]:
    """Return what manifests and checkpoints say of the container."""
    return {
        "cores": found.cores, "quota": found.quota, "memory_bytes": found.memory_bytes,
        "cores_source": found.cores_source, "memory_source": found.memory_source,
    }  # fmt: skip


def halved(plan: Plan) -> Plan | None:
    """Return the plan with half its batches, None where they cannot be halved; the effective batch stays."""
    if plan.micro_batch == plan.eval_batch == 1:
        return None
    return replace(plan, micro_batch=max(1, plan.micro_batch // 2), eval_batch=max(1, plan.eval_batch // 2))


def limits(found: Resources) -> dict[str, JsonValue]:
    """Return what `resource_limits` says, in a job's events and in the log of a starting worker."""
    return {
        "cpu_cores": found.cores,
        "quota": found.quota,
        "memory_mb": found.memory_bytes >> 20,
        "source": f"cpu: {found.cores_source}; memory: {found.memory_source}",
    }
