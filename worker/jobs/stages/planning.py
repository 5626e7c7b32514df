"""Planning stage: reuse the plan of an earlier attempt, or choose one by calibration."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pydantic import JsonValue, TypeAdapter, ValidationError

from calibration.cache.plan_cache import PlanCache
from calibration.choose import PlanChoice, choose_plan
from calibration.space import fit_shared_memory, oversubscription
from calibration.task import CalibrationContext, Options, memory_for_training, sample_bytes
from preflight.container.resources import Resources, detect
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.wire import TrainJob
from training.checkpoints.resume import ResumePoint, find_resume_points
from training.data.dataset_info import DatasetInfo
from training.prediction import Prediction
from training.system.requirements import explain_no_code, shared_memory_bytes
from worker.jobs.context import JobContext
from worker.jobs.stages.payloads import (
    advice_payload,
    asked_options,
    calibration_payload,
    container_facts,
    plan_payload,
    probe_payload,
    resources_payload,
    trial_payload,
)

SAME_CONTAINER_FIELDS: Final = ("cores", "quota", "memory_bytes")
"""Resources that must be those under which a plan was chosen, for the plan to be reused."""

PREDICTION = TypeAdapter(Prediction)


def detect_resources(context: JobContext) -> Resources:
    """Detect the limits of the container and emit them."""
    found = detect(shares=context.settings.shares)
    if context.server is not None and found.working_set_bytes is not None:
        # The children of the server share this memory, which is a part of theirs already.
        used = max(0, found.working_set_bytes - context.server.shared_bytes())
        found = replace(found, working_set_bytes=used)
    found = context.processors.remaining(found)
    context.emit("resource_limits", resources_payload(found))
    for warning in (*found.warnings, explain_no_code()):
        if warning is not None:
            context.warn(warning)
    return found


def select_plan(
    context: JobContext, job: TrainJob, spec: TrainSpec, resources: Resources, store: DatasetInfo, *,
    only: bool = False,
) -> PlanChoice:  # fmt: skip
    """Return the plan of an earlier attempt, else the one that calibration chooses; emit which and why.

    `only`: no training follows, so that all plans and larger batches are measured, however short it would be.
    """
    found = resume_points(context, spec, store)
    options = replace(_options(context, job), advise=only, thorough=only)
    choice = _earlier_plan(context, job, spec, resources, found)
    choice = choice or _calibrate(context, job, options, spec, resources, store)
    choice = replace(choice, plan=_fit_shared_memory(context, choice.plan, spec, store))
    if spec.deterministic:
        context.plans.put(choice.plan)
    context.emit(
        "calibration_winner",
        {
            **plan_payload(choice.plan),
            "source": choice.source,
            "why": choice.why,
            "predicted_epoch_s": choice.predicted_epoch_s,
            "calibration_s": choice.calibration_seconds,
            "import_s": choice.import_seconds,
            "trials": choice.trials,
            "cache": choice.cache,
            **(calibration_payload(choice, choice.finding) if choice.finding else {}),
        },
    )
    if choice.finding is not None and choice.finding.advice is not None:
        context.emit("batch_advice", advice_payload(choice.finding.advice))
    return choice


def _fit_shared_memory(context: JobContext, plan: Plan, spec: TrainSpec, store: DatasetInfo) -> Plan:
    """Return a plan whose loader workers have room for their batches; warn where it differs from `plan`."""
    fitting, warning = fit_shared_memory(plan, spec.batch_size * sample_bytes(store), shared_memory_bytes())
    if warning is not None:
        context.warn(warning)
    return fitting


def resume_points(context: JobContext, spec: TrainSpec, store: DatasetInfo) -> list[ResumePoint]:
    """Return the checkpoints that this training can resume from, best first; warn of unusable ones."""
    found, unusable = find_resume_points(context.paths.job, spec, store, context.digests)
    for message in unusable:
        context.warn(message)
    return found


def _earlier_plan(
    context: JobContext, job: TrainJob, spec: TrainSpec, resources: Resources, found: Sequence[ResumePoint]
) -> PlanChoice | None:
    """Return the plan of an earlier attempt; warn where it was chosen with less than the job asks for."""
    choice = _kept_plan(context, spec, resources, found)
    for warning in oversubscription(choice.plan, resources) if choice else ():
        context.warn(warning)
    if choice is not None and found:
        ignored = ignored_options(job, found[0].facts.get("calibration"))
        if ignored:
            context.warn(
                f"{', '.join(ignored)} {'is' if len(ignored) == 1 else 'are'} ignored, as the job resumes under the "
                "plan of its checkpoint; use another job id to measure again"
            )
    return choice


def _kept_plan(
    context: JobContext, spec: TrainSpec, resources: Resources, found: Sequence[ResumePoint]
) -> PlanChoice | None:
    first = found[0] if found else None
    if spec.deterministic:
        plan = first.plan if first else context.plans.get()
        if plan is None:
            return None
        return PlanChoice(plan=plan, source="kept", why="a deterministic job keeps its first plan")
    if first is None:
        return None
    before, now = first.facts.get("resources"), container_facts(resources)
    changed = [name for name in SAME_CONTAINER_FIELDS if not isinstance(before, dict) or before.get(name) != now[name]]
    if changed:
        context.warn(f"container resources differ from the checkpoint's ({', '.join(changed)}); choosing a new plan")
        return None
    predicted = first.facts.get("predicted_epoch_s")
    return PlanChoice(
        plan=first.plan, source="kept", why="the checkpoint was made in a container with the same resources",
        predicted_epoch_s=predicted if isinstance(predicted, float) else None,
        prediction=_prediction(first.facts.get("prediction")),
    )  # fmt: skip


def _prediction(fact: JsonValue) -> Prediction | None:
    """Return the prediction that a checkpoint keeps; None where it keeps none, or one of another version."""
    try:
        return PREDICTION.validate_json(json.dumps(fact))
    except ValidationError:
        return None


def ignored_options(job: TrainJob, before: JsonValue) -> list[str]:
    """Return the options of a calibration that `job` asks for and its checkpoint's plan was not chosen with.

    `before` are those that the checkpoint keeps (`asked_options`).
    """
    known = before if isinstance(before, dict) else {}
    return [name for name, value in asked_options(job).items() if value and known.get(name) != value]


def _options(context: JobContext, job: TrainJob) -> Options:
    return Options(
        calibrate=job.calibrate,
        force=job.force_calibration,
        samples=job.calibration_samples,
        seconds=job.calibration_seconds or context.settings.calibration_seconds,
        explicit_seconds=job.calibration_seconds is not None,
        knobs=job.calibration_knobs,
        shares=context.settings.packs,
    )


def _calibrate(
    context: JobContext, job: TrainJob, options: Options, spec: TrainSpec, resources: Resources, store: DatasetInfo
) -> PlanChoice:
    settings = context.settings
    around = CalibrationContext(
        resources=resources,
        store=store,
        cache=PlanCache(settings.cache_dir),
        directory=context.paths.attempt,
        environment=context.environment,
        server=context.server,
    )

    def emit(kind: str, fields: dict[str, JsonValue]) -> None:
        match kind, fields:
            case "trial", {"plan": dict()}:
                context.emit("calibration_trial", trial_payload(spec, fields, options.seconds))
            case "probe", _:
                context.emit("memory_probe", probe_payload(fields, memory_for_training(resources)))
            case _, {"message": str(message)}:
                context.warn(message)

    own = _fit_shared_memory(context, job.plan.complete(spec, resources.cores), spec, store)
    return choose_plan(spec, own, around, options, emit, context.control.check)
