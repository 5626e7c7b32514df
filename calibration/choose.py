"""Choice of the plan for a job: from the cache, else by a search, else the user's own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

from pydantic import JsonValue

from calibration.cache.lock import calibration_lock
from calibration.cache.plan_cache import CachedPlan
from calibration.cache.signature import Signature, signature
from calibration.result import CalibrationResult, MemoryProbe, Trial
from calibration.space import oversubscription
from calibration.task import CalibrationContext, Options, task_of
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from training.data.split import Split, split
from training.prediction import Prediction

LOCK_TIMEOUT: Final = 60.0
"""Seconds beyond its longest time that a calibration waits for another one to end."""
LONGER: Final = 2
"""Longest training that a finding serves, as a multiple of the training that the search was made for."""
Emit = Callable[[str, dict[str, JsonValue]], None]
"""Publishes an event (kind, fields): `probe`, `trial`, `warning`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoice:
    """The plan to train with, and why."""

    plan: Plan
    source: Literal["cache", "measured", "own", "kept"]
    """Origin of the plan; `own`: the user's configuration; `kept`: that of an earlier attempt."""
    why: str
    predicted_epoch_s: float | None = None
    """Predicted seconds per epoch; None where nothing was measured."""
    calibration_seconds: float = 0.0
    """Wall time of the calibration: waiting for another one, and the start of processes and their imports included."""
    import_seconds: float = 0.0
    """The part of it that processes took to start and to import torch."""
    trials: int = 0
    """Trials that were run."""
    cache: Literal["hit", "miss", "off"] = "off"
    cache_age_s: float | None = None
    """Seconds since a plan from the cache was measured."""
    prediction: Prediction | None = None
    """Prediction that the training is compared with."""
    finding: CalibrationResult | None = None
    """Result of the calibration; None where nothing was measured."""

    @property
    def predicted_interval_s(self) -> tuple[float, float] | None:
        """95 % interval of `predicted_epoch_s`, whose share of warming up moves its ends, too."""
        predicted = self.prediction
        if predicted is None or self.predicted_epoch_s is None:
            return None
        warm_s = self.predicted_epoch_s - predicted.epoch_s
        return predicted.low_s + warm_s, predicted.high_s + warm_s


def choose_plan(
    spec: TrainSpec, own: Plan, context: CalibrationContext, options: Options, emit: Emit, tick: Callable[[], None]
) -> PlanChoice:
    """Return the plan for `spec`; a failure is emitted as a warning and leaves the user's own plan.

    `tick` is called while processes measure; an error that it raises (a cancellation) ends them.

    Raises:
        OutOfMemory: not even a micro-batch of one sample fits into the memory.
        InvalidConfig: the spec does not suit the data set.
    """
    for warning in oversubscription(own, context.resources):
        _warn(emit, warning)
    if not options.calibrate:
        return PlanChoice(plan=own, source="own", why="calibration is off")
    if own.device != "cpu":
        return PlanChoice(plan=own, source="own", why="calibration measures plans for the CPU only")
    key, *others = _signatures(spec, own, context, options)
    parts = split(spec, context.store)
    known = _cached((key, *others), parts, context, options, emit)
    if known is not None:
        return known
    began = time.monotonic()
    with calibration_lock(context.cache.directory, tick, options.seconds + LOCK_TIMEOUT) as alone:
        waited_s = time.monotonic() - began
        if not alone:
            _warn(emit, "the plan cache is locked by another calibration, which may disturb this one")
        # Another calibration may have measured the same meanwhile.
        choice = _cached((key, *others), parts, context, options, emit)
        choice = choice or _search(spec, own, context, options, emit, tick)
        return replace(choice, calibration_seconds=choice.calibration_seconds + waited_s)


def _signatures(spec: TrainSpec, own: Plan, context: CalibrationContext, options: Options) -> list[Signature]:
    """Return the key of a finding for `spec`; where that is short, also the key of one for whole epochs."""
    whole = replace(spec, train_samples=None, max_steps=None)
    key, whole_key = (
        signature(each, own, context.resources, context.store, knobs=options.turned) for each in (spec, whole)
    )
    return [key] if key == whole_key else [key, whole_key]


def serves(finding: CalibrationResult, epochs: float, options: Options) -> bool:
    """Whether a finding serves a training: it was measured with what is asked for, and for one about as long.

    A finding for a shorter training left out plans that are worth their time in this one; its measurements are reused
    (calibration/cache/trial_log.py).
    """
    searched = finding.searched_epochs
    in_reach = searched is None or (epochs <= LONGER * searched and not options.thorough)
    return in_reach and options.met_by(finding)


def _cached(
    keys: Sequence[Signature], parts: Split, context: CalibrationContext, options: Options, emit: Emit
) -> PlanChoice | None:  # fmt: skip
    """Return the choice of a cached plan; None where it was measured with less than is asked for now."""
    for key in () if options.force else keys:
        entry, warning = context.cache.get(key)
        _warn(emit, warning)
        if entry is not None and serves(entry.finding, parts.total_steps / parts.steps, options):
            return choice_of(entry, parts)
    return None


def choice_of(entry: CachedPlan, parts: Split) -> PlanChoice:
    """Return the choice of a cached plan for a training of `parts`; compiled only where that saves time."""
    finding = entry.finding
    plan, prediction = finding.plan, finding.prediction
    if parts.steps != finding.steps_per_epoch:  # a short training uses what was found for whole epochs
        prediction = prediction.of_steps(parts.steps)
    gain = next((trial.ratio for trial in finding.trials if trial.knob == "compile" and trial.verdict == "won"), None)
    training_s = parts.epochs * replace(prediction, warm_s=0.0).over(parts.epochs, parts.last_epoch)
    if plan.compile and gain and training_s * (gain - 1) < prediction.warm_s:
        plan, prediction = replace(plan, compile=False), _slower(prediction, gain)
    return PlanChoice(
        plan=plan, source="cache", why="reused from an earlier calibration", cache="hit",
        predicted_epoch_s=prediction.over(parts.epochs, parts.last_epoch), cache_age_s=max(0.0, entry.age_s),
        finding=finding, prediction=prediction,
    )  # fmt: skip


def _slower(prediction: Prediction, factor: float) -> Prediction:
    """Return the prediction of the plan before, slower by `factor` and without warm-up."""
    return Prediction(
        epoch_s=factor * prediction.epoch_s, low_s=factor * prediction.low_s, high_s=factor * prediction.high_s,
        step_s=factor * prediction.step_s, validation_s=factor * prediction.validation_s, gauge_s=prediction.gauge_s,
    )  # fmt: skip


def _search(
    spec: TrainSpec, own: Plan, context: CalibrationContext, options: Options, emit: Emit, tick: Callable[[], None]
) -> PlanChoice:
    # Imported when a search begins: most jobs find their plan in the cache, and a worker starts sooner without it.
    from calibration.cache.trial_log import TrialLog
    from calibration.measure.process_pool import ProcessPool, ProcessSettings
    from calibration.races.run import NothingMeasured
    from calibration.search.search import search

    began = time.monotonic()
    trials: list[Trial] = []

    def tell(found: Trial | MemoryProbe) -> None:
        if isinstance(found, Trial):
            trials.append(found)
        emit("trial" if isinstance(found, Trial) else "probe", asdict(found))

    key = _signatures(spec, own, context, options)[0]
    ledger = TrialLog(context.cache.trial_log(key), reuse=not options.force, least_steps=options.samples or 0)
    task = replace(task_of(spec, own, context, options), unsteadiness=context.cache.unsteadiness(key))
    where = ProcessSettings(
        store=context.store.path, directory=context.directory, environment=context.environment,
        shares=context.resources.shares, server=context.server,
    )  # fmt: skip
    with ledger, ProcessPool(spec, where, tick) as pool:
        try:
            finding = search(task, pool, ledger, tell)
        except (NothingMeasured, OSError) as error:
            _warn(emit, f"calibration measured nothing: {error}; training continues with your own plan")
            plan = error.plan if isinstance(error, NothingMeasured) else own
            return PlanChoice(
                plan=plan, source="own", why="calibration measured nothing", cache="miss", trials=_ran(trials),
                calibration_seconds=time.monotonic() - began, import_seconds=pool.import_seconds,
            )  # fmt: skip
    finding = replace(finding, calibration_seconds=time.monotonic() - began)  # its processes have ended, too
    if finding.decided:  # one that did not decide is not kept: what it measured undisturbed is in the trial log
        _warn(emit, context.cache.put(key, finding))
    parts = split(spec, context.store)
    return PlanChoice(
        plan=finding.plan, source="measured", why=finding.why,
        predicted_epoch_s=finding.prediction.over(parts.epochs, parts.last_epoch),
        cache="miss", trials=_ran(trials), finding=finding, prediction=finding.prediction,
        calibration_seconds=finding.calibration_seconds, import_seconds=finding.import_seconds,
    )  # fmt: skip


def _ran(trials: Sequence[Trial]) -> int:
    return sum(trial.ran for trial in trials)


def _warn(emit: Emit, warning: str | None) -> None:
    if warning is not None:
        emit("warning", {"message": warning})
