"""Training stage: the training child, started again from its last checkpoint where it is killed."""

import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import JsonValue

from calibration.choose import PlanChoice
from preflight.container.resources import Resources
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import ChildKilled, OutOfMemory, PreflightError
from preflight.files.journal import Record
from preflight.wire import TrainJob
from training.data.dataset_info import DatasetInfo
from training.group import MODULE as GROUP_MODULE
from training.loop import child as training_child
from training.loop.child import TrainingRequest
from training.prediction import DEVIATION, Prediction, slowdown
from training.process.launch import environment_for
from training.process.runner import TICK_SECONDS
from worker.jobs.context import JobContext
from worker.jobs.stages.child_runner import run_job_child
from worker.jobs.stages.group import Group
from worker.jobs.stages.parent import Parent
from worker.jobs.stages.payloads import asked_options, container_facts, plan_payload
from worker.jobs.stages.planning import PREDICTION, resume_points
from worker.state.control import RestartTraining
from worker.state.packing.share import Usage

MAX_HALVINGS: Final = 3
"""Times that an attempt halves the micro-batch after memory ran out."""
ALONE_SECONDS: Final = 600.0
"""Longest time for which a job that ran out of memory waits until no other one runs here."""
MAX_KILLS: Final = 3
"""Kills of the training child in a row, without a checkpoint between them, that fail the job."""
EVENTS_BY_RECORD: Final = {
    "progress": "progress", "epoch": "epoch_done", "prediction": "prediction_checked", "profile": "training_profile",
    "adapted": "plan_adapted", "model": "model_built",
}  # fmt: skip
"""Types of events, by the kind of record that has the same payload."""


class RecordForwarder:
    """Forwards the records of all training children of an attempt."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self.checkpoints = 0
        """Checkpoints saved in this attempt."""

    def forward(self, record: Record) -> None:
        """Emit the event for `record`."""
        payload, context = record.payload, self._context
        match record.kind:
            case "warning":
                rank = payload.get("rank")
                context.warn(str(payload["message"]), rank if isinstance(rank, int) else None)
            case "resumed":
                context.emit("job_resumed", {"epochs_done": payload["epoch"], "steps_done": payload["step"]})
            case "checkpoint":
                self.checkpoints += 1
                context.control.mark_progress()
                context.emit("checkpoint_saved", {
                    "epochs_done": payload["epoch"], "steps_done": payload["step"], "took_s": payload["seconds"],
                    "checkpoint_bytes": payload["bytes"],
                })  # fmt: skip
            case kind if kind in EVENTS_BY_RECORD:
                context.emit(EVENTS_BY_RECORD[kind], payload)


@dataclass(slots=True, kw_only=True)
class TrainingRun:
    """The training of one attempt, over all its child processes."""

    context: JobContext
    job: TrainJob
    spec: TrainSpec
    choice: PlanChoice
    resources: Resources
    store: DatasetInfo
    group: Group = field(default_factory=Group)
    parent: Parent | None = None
    """The model that the training starts from."""
    plan: Plan = field(init=False)
    """The plan chosen, with smaller batches once memory ran out."""
    seconds: float = field(default=0.0, init=False)
    records: RecordForwarder = field(init=False)
    _resumed: bool = field(default=False, init=False)
    """Whether the last child had a checkpoint to resume from."""
    _frugal: bool = field(default=False, init=False)
    """Whether memory ran out before."""
    _was_alone: bool = field(default=False, init=False)
    """Whether the training has waited for other jobs to end, after memory ran out while they shared it."""

    def __post_init__(self) -> None:
        self.plan = self.choice.plan
        self.records = RecordForwarder(self.context)

    def run(self) -> dict[str, JsonValue]:
        """Train to the end and return the figures of the `done` record.

        Raises:
            OutOfMemory: smaller micro-batches did not help.
            ChildKilled: the child was killed again and again.
            GroupShort: fewer workers are left than the job demands.
            PreflightError: the failure that the child recorded.
        """
        began = time.monotonic()
        with closing(self.group):
            done = self._run_children()
        self.seconds = time.monotonic() - began
        return done if self.group.workers is None else {**done, "workers": self.group.workers}

    def _run_children(self) -> dict[str, JsonValue]:
        """Run one training child after the other until one is done; raises as `run`."""
        halvings, kills = 0, 0
        while True:
            saved = self.records.checkpoints
            try:
                return self._run_child()
            except RestartTraining:
                kills = 0
            except OutOfMemory as error:
                if not self._wait_alone(error):
                    self._halve(error, halvings)
                    halvings += 1
            except ChildKilled as error:
                kills = 1 if self.records.checkpoints > saved else kills + 1
                if kills == MAX_KILLS:
                    raise ChildKilled(error.message) from error
                how = (
                    "resuming from the last checkpoint"
                    if self._resumed or self.records.checkpoints
                    else "no checkpoint yet; starting again from the beginning"
                )
                self.context.warn(f"{error.message}; {how}")
            except PreflightError as error:
                if not self.group.survives(error):
                    raise

    def _run_child(self) -> dict[str, JsonValue]:
        context, plan, spec = self.context, self.plan, self.spec
        context.emit("training_config", {
            **plan_payload(plan), "batch_size": spec.batch_size, "optimizer": spec.optimizer,
            "learning_rate": spec.learning_rate, "schedule": spec.schedule, "seed": spec.seed,
        })  # fmt: skip
        context.emit(
            "dataloader_config",
            {
                "num_workers": plan.loader_workers,
                "persistent_workers": plan.loader_workers > 0,
                "prefetch_factor": plan.prefetch_factor,
            },
        )
        plan, prediction = self._within_share(plan)
        resume = tuple(found.path for found in resume_points(context, spec, self.store))
        self._resumed = bool(resume)
        seat = self.group.seat()
        request = TrainingRequest(
            spec=spec, plan=plan, store=self.store.path, facts=self._facts(), artifact=context.paths.staged,
            checkpoints=context.paths.attempt, checkpoint_seconds=context.settings.checkpoint_seconds,
            resume=resume, verified=context.digests.known(), max_parameters=context.settings.max_parameters,
            prediction=prediction, processors=context.processors.file,
            profile=self.job.profile, trace=self.job.trace, share=self.resources.share, seat=seat, frugal=self._frugal,
            normalization=(self.store.mean, self.store.std), fine_tuning=self.parent is not None,
            parent=self.parent.weights if self.parent else None,
        )  # fmt: skip
        body = training_child.REQUEST.dump_json(request)
        environment = environment_for(plan, context.environment)
        return run_job_child(
            context, "training", training_child.MODULE if seat is None else GROUP_MODULE, body, environment,
            on_record=self._on_record, check=self._check,
        )  # fmt: skip

    def _within_share(self, plan: Plan) -> tuple[Plan, Prediction | None]:
        """Return the plan to begin with while other jobs have their share of the processors, and its prediction.

        A plan keeps its threads, and the training takes fewer by itself, unless it may not change them.
        """
        share, spec = self.context.processors, self.spec
        prediction = self.choice.prediction if self.plan == self.choice.plan else None
        known = self.choice.prediction
        alone, speeds = (plan.threads, ()) if known is None else known.sharing(plan.threads)
        alone = alone if share.processors else plan.threads
        is_fixed = spec.deterministic or plan.compile or self.job.workers != 1
        threads = share.begin(
            Usage(
                threads=plan.threads if is_fixed else alone,
                speeds=speeds,
                is_fixed=is_fixed,
                memory_bytes=self._memory_bytes(),
            )
        )
        share.mark()
        self._emit_share()
        if prediction is not None and threads != plan.threads:
            prediction = prediction.scaled(slowdown(speeds, plan.threads, threads), DEVIATION)
        if share.had_others and plan.affinity == "pinned":  # two would be pinned to the same processors
            plan = replace(plan, affinity="free")
        return (replace(plan, threads=threads) if is_fixed else plan), prediction

    def _memory_bytes(self) -> int | None:
        """Return the predicted peak of the training process; None where nothing was measured."""
        finding = self.choice.finding
        if finding is None or finding.memory is None:
            return None
        fit, peaks = finding.memory, [trial.peak_bytes or 0 for trial in finding.trials if trial.plan == finding.plan]
        return max(round(fit.base_bytes + fit.sample_bytes * self.plan.micro_batch), *peaks, 0)

    def _check(self) -> None:
        self.group.check()
        self._emit_share()

    def _emit_share(self) -> None:
        """Emit the job's share of the processors, where another job has come or gone."""
        found = self.context.processors.look()
        if found is not None:
            self.context.emit("processors_shared", {
                "processors": found.processors, "of_processors": found.total, "shared_with": list(found.others),
                "together": found.together, "message": found.describe(),
            })  # fmt: skip

    def _on_record(self, record: Record) -> None:
        self.records.forward(record)
        self.group.on_record(record)

    def _facts(self) -> dict[str, JsonValue]:
        choice, store = self.choice, self.store
        return {
            "job_id": self.context.job_id,
            "attempt": self.context.attempt,
            "request": self.job.digest(),
            "resources": container_facts(self.resources),
            "calibration": asked_options(self.job),
            "predicted_epoch_s": choice.predicted_epoch_s,
            "parent": self.parent.lineage.model_dump(mode="json") if self.parent else None,
            "prediction": PREDICTION.dump_python(choice.prediction, mode="json") if choice.prediction else None,
            "dataset": {
                "name": store.name,
                "train": store.train_count,
                "test": store.test_count,
                "sha256": store.sha256,
            },
        }

    def _wait_alone(self, error: OutOfMemory) -> bool:
        """Wait until no other job runs here, where one did: it may be the one that took the memory.

        Returns whether to try the training again unchanged, which is done once.
        """
        share = self.context.processors
        if not share.had_others or self._was_alone:
            return False
        self._was_alone = True
        share.require_alone()
        self.context.warn(f"{error.message}; other jobs ran at the same time, so it is tried again without them")
        deadline = time.monotonic() + ALONE_SECONDS
        while share.waits_for_others() and time.monotonic() < deadline:
            self.context.control.check()
            time.sleep(TICK_SECONDS)
        return True

    def _halve(self, error: OutOfMemory, halvings: int) -> None:
        """Halve the micro-batch after memory ran out; raises `OutOfMemory` where that is not possible."""
        plan = self.plan
        smaller = halved(replace(plan, micro_batch=min(plan.micro_batch, self.spec.batch_size)))
        if smaller is None or halvings == MAX_HALVINGS:
            tried = f"{halvings} times smaller micro-batches did not help" if halvings else "it cannot be halved"
            raise OutOfMemory(f"{error.message}; micro_batch is {plan.micro_batch}, {tried}") from error
        self.plan, self._frugal = smaller, True
        differs = (
            ", so that the weights will differ from those of an undisturbed run" if self.spec.deterministic else ""
        )
        self.context.emit(
            "out_of_memory",
            {
                "message": f"{error.message}; continuing with micro_batch {smaller.micro_batch}{differs}",
                "micro_batch": smaller.micro_batch,
                "eval_batch": smaller.eval_batch,
            },
        )


def halved(plan: Plan) -> Plan | None:
    """Return the plan with half its batches, None where they cannot be halved; the effective batch stays."""
    if plan.micro_batch == plan.eval_batch == 1:
        return None
    return replace(plan, micro_batch=max(1, plan.micro_batch // 2), eval_batch=max(1, plan.eval_batch // 2))
