"""Fake training stages that take milliseconds; supervisors, fence, spool, pipeline, `publish` and manifest are real."""

import hashlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final, Literal, get_args

from faulty_redis import Shared
from pydantic import JsonValue

from calibration.choose import PlanChoice
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import ArtifactError, DatasetError
from preflight.wire import TrainJob
from training.artifacts.model_dir import save
from training.artifacts.publish import publish
from worker.jobs import pipeline
from worker.jobs.context import JobContext
from worker.jobs.outcome import Finished
from worker.jobs.stages.extras import select_extras
from worker.jobs.stages.publishing import finish, result_of
from worker.jobs.stages.training import TrainingRun

Behaviour = Literal["finish", "finish late", "fail", "fail late", "fail for retry", "break", "wait", "die", "die once"]
BEHAVIOURS: Final[tuple[Behaviour, ...]] = get_args(Behaviour)
"""What a job does; its `seed` is the place in here."""
STEP_S: Final = 0.002
LATE_STEPS: Final = 100
WAIT_S: Final = 60.0
DRAINING: Final = 0
"""Place in the shared numbers: 1 where jobs that wait shall come to an end."""
CLOCK: Final = 1
"""Place in the shared numbers: seconds by which the system clock is set wrong."""

SCALED: Final[Mapping[str, float]] = {
    "LEASE_MS": 600, "LEASE_TIMEOUT": 0.6, "CLAIM_TIMEOUT": 0.25, "CHECK_INTERVAL": 0.1, "MAX_CHECK_GAP": 0.3,
    "MAX_CHECK_SECONDS": 0.1, "MONITOR_INTERVAL": 0.1, "BLMOVE_TIMEOUT": 0.05, "HARD_TIMEOUT": 1,
    "BASE_PAUSE_SECONDS": 0.005, "MAX_PAUSE_SECONDS": 0.1, "HEARTBEAT_INTERVAL": 0.05, "FLUSH_TIMEOUT": 0.05,
    "BUSY_PAUSE": 0.05, "REQUEUE_TIMEOUT": 0.1, "RETRY_INTERVAL": 0.05, "SCHEDULE_INTERVAL": 0.05,
    "LOCK_SECONDS": 0.5, "RELEASE_INTERVAL": 0.25, "SUSPENSION_INTERVAL": 0.05, "IDLE_HEARTBEAT_INTERVAL": 0.5,
    "PLACE_SECONDS": 1.25, "RENEWAL_INTERVAL": 0.5, "CLAIM_INTERVAL": 3, "WATCH_INTERVAL": 0.5,
}  # fmt: skip
"""Constants of `worker` and `preflight`, and a twentieth of each, so that a takeover takes half a second."""


def scale() -> None:
    """Shorten the waits in all loaded modules of `worker` and `preflight`."""
    found: set[str] = set()
    modules = [module for name, module in sys.modules.items() if name.startswith(("worker.", "preflight."))]
    for module in modules:
        for name in SCALED.keys() & vars(module).keys():
            setattr(module, name, SCALED[name] if name != "LEASE_MS" else int(SCALED[name]))
            found.add(name)
    missing = SCALED.keys() - found
    if missing:
        raise RuntimeError(
            f"neither worker nor preflight has {', '.join(sorted(missing))}; correct SCALED in {__file__}"
        )


def set_clock_by(shared: Shared) -> None:
    """Shift `time.time` by the test's offset; monotonic clocks stay right."""
    true_time = time.time

    def wrong_time() -> float:
        return true_time() + shared[CLOCK]

    setattr(time, "time", wrong_time)  # noqa: B010 - mypy refuses the plain assignment


def install(shared: Shared, runs: Path, *, obedient: bool) -> None:
    """Replace the stages of the pipeline.

    Args:
        shared: numbers that the test sets.
        runs: file to which each run of a job adds a line.
        obedient: whether a job does what its seed says; else each finishes.
    """

    def nothing(*_: object) -> None:
        return

    def select_plan(context: JobContext, job: TrainJob, spec: TrainSpec, *_: object) -> PlanChoice:  # noqa: ARG001
        return PlanChoice(plan=job.plan.complete(spec, 1), source="kept", why="the test asks for none")

    def train_and_publish(training: TrainingRun) -> Finished:
        run = training.context
        _note(runs, f"{run.job_id} {run.attempt} {os.getpid()}")
        behaviour: Behaviour = BEHAVIOURS[training.spec.seed % len(BEHAVIOURS)] if obedient else "finish"
        _train(run, behaviour, shared)
        return _published(run, training.plan, training.spec)

    stages = {
        "detect_resources": nothing, "prepare_dataset": nothing, "select_plan": select_plan,
        "train_and_publish": train_and_publish,
    }  # fmt: skip
    for name, stage in stages.items():
        setattr(pipeline, name, stage)


def _train(run: JobContext, behaviour: Behaviour, shared: Shared) -> None:
    """Behave as a training does towards its context."""
    steps = LATE_STEPS if behaviour in ("finish late", "fail late") else 4
    for step in range(1, steps + 1):
        _step(run, step, steps)
        if step == steps // 2:
            _misbehave(run, behaviour)
            run.control.mark_progress()
            run.emit("checkpoint_saved", {"epochs_done": 0, "steps_done": step, "seconds": 0.0, "bytes": 1})
    deadline = time.monotonic() + WAIT_S
    while behaviour == "wait" and not shared[DRAINING] and time.monotonic() < deadline:
        time.sleep(STEP_S)
        run.control.check()


def _step(run: JobContext, step: int, steps: int) -> None:
    time.sleep(STEP_S)
    run.emit("progress", {"epoch": 1, "epochs": 1, "step": step, "steps": steps, "loss": 1.0, "accuracy": 0.5,
                         "samples_per_s": 1.0, "eta_s": 0.0})  # fmt: skip
    run.control.check()


def _misbehave(run: JobContext, behaviour: Behaviour) -> None:
    match behaviour:
        case "fail" | "fail late":
            raise DatasetError("the data set is damaged, as the test asks")
        case "fail for retry":
            raise ArtifactError("nothing can be written, as the test asks")
        case "break":
            raise RuntimeError("a fault of ours, as the test asks")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "die once" if run.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def _published(run: JobContext, plan: Plan, spec: TrainSpec) -> Finished:
    """Publish a model as the training child and the supervisor do."""
    metrics: dict[str, JsonValue] = {
        "test_accuracy": 0.5, "test_loss": 1.0, "epochs": 1, "best_epoch": 1, "stopped_early": False,
        "train_seconds": 0.1, "samples_per_s": 1.0, "measured_epoch_s": 0.1,
    }  # fmt: skip
    model = f"weights of attempt {run.attempt}".encode()
    facts: dict[str, JsonValue] = {
        "job_id": run.job_id, "attempt": run.attempt, "spec": asdict(spec), "plan": asdict(plan), "metrics": metrics,
        "predicted_epoch_s": None,
    }  # fmt: skip
    save(run.paths.staged, (model,), facts)
    run.control.assert_current()
    publish(run.paths.staged, run.paths.artifact)
    digest = hashlib.sha256(model).hexdigest()
    figures: dict[str, JsonValue] = {
        **metrics, "artifact": str(run.paths.artifact), "model_sha256": digest, "predicted_epoch_s": None,
    }  # fmt: skip
    extras = select_extras(run, result_of(run, figures, plan))
    return finish(run, extras, saved=run.extras.save(extras))


def _note(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")
