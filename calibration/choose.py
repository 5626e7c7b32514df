"""Chooses the plan for a job: from the cache, else by a search, else the user's own.

It raises for a job only where nothing could run it: where not even one sample fits into the memory.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal

from pydantic import JsonValue

from calibration.cache.lock import calibration_lock
from calibration.cache.plan_cache import CachedPlan, PlanCache
from calibration.cache.signature import Signature, has_bfloat16, signature
from calibration.cache.trial_log import Ledger
from calibration.measure.process_pool import Lab
from calibration.result import Finding, Knob, Trial
from calibration.search.mutations import DEFAULT_SECONDS, KNOBS, Space, thread_counts
from calibration.search.search import NothingMeasured, Task, search
from training.config.plan import Plan
from training.config.spec import TrainSpec
from training.data.dataset_store import StoreInfo
from training.data.split import split
from training.loop.prediction import Prediction
from training.process.launch import find_tcmalloc
from training.process.oom import reserve
from training.system.resources import Resources

TIERS: Final = ((1 << 30, 8), (2 << 30, 12), (4 << 30, 16))
"""Memory below this many bytes -> steps measured of each plan; from 4 GiB on, `MOST_SAMPLES`."""
MOST_SAMPLES: Final = 32
PATIENCE: Final = 60.0
"""Seconds beyond its own longest time that a calibration waits for another one to end."""
COMPILERS: Final = ("g++", "clang++", "c++")

Emit = Callable[[str, dict[str, JsonValue]], None]
"""Takes what happens, as (kind, fields): `trial`, `warning`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to calibrate."""

    calibrate: bool = True
    """False: the user's own plan, unmeasured."""
    force: bool = False
    """Measure even what was measured before."""
    samples: int | None = None
    """Steps measured of each plan; None: by memory tier."""
    seconds: float = DEFAULT_SECONDS
    knobs: tuple[Knob, ...] | None = None
    """Which parts of the plan may be turned; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The plan to train with, and why."""

    plan: Plan
    source: Literal["cache", "measured", "own", "kept"]
    """`own`: the user's configuration; `kept`: that of an earlier attempt."""
    why: str
    predicted_epoch_s: float | None = None
    """None where nothing was measured."""
    calibration_seconds: float = 0.0
    """Wall time of the choice, the child's import of torch apart."""
    import_seconds: float = 0.0
    trials: int = 0
    cache: Literal["hit", "miss", "off"] = "off"
    cache_age_s: float | None = None
    """Seconds since a plan from the cache was measured."""
    prediction: Prediction | None = None
    """What a training under the plan is held against."""
    finding: Finding | None = None
    """Everything that led to the plan; None where nothing was measured."""


def samples_for(memory_bytes: int) -> int:
    """Return the steps to measure of each plan in a container with this memory budget."""
    return next((samples for below, samples in TIERS if memory_bytes < below), MOST_SAMPLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a calibration runs."""

    resources: Resources
    store: StoreInfo
    cache: PlanCache
    directory: Path
    """An existing directory for the child's files."""
    environment: Mapping[str, str]
    """The child's environment variables."""


def choose_plan(
    spec: TrainSpec, own: Plan, around: Surroundings, options: Options, emit: Emit, tick: Callable[[], None]
) -> Choice:
    """Return the plan for `spec`. What goes wrong is emitted as a warning and leaves the user's own plan.

    `tick` is called while processes measure; what it raises (a cancellation) ends them and is raised on.

    Raises:
        OutOfMemory: not even a micro-batch of one sample fits into the memory.
        InvalidConfig: the spec does not suit the data set.
    """
    if not options.calibrate:
        return Choice(plan=own, source="own", why="calibration is off")
    if own.device != "cpu":
        return Choice(plan=own, source="own", why="calibration measures plans for the CPU only")
    key = signature(spec, own, around.resources, around.store, knobs=options.knobs or KNOBS)
    known = None if options.force else _cached(key, spec.epochs, around, emit)
    if known is not None:
        return known
    # Whoever measures the same first has found it for both, so the cache is asked again.
    with calibration_lock(around.cache.directory, tick, options.seconds + PATIENCE) as alone:
        known = None if options.force else _cached(key, spec.epochs, around, emit)
        if known is not None:
            return known
        if not alone:
            _warn(emit, "the lock of the plan cache was not to be had; another calibration here would disturb this one")
        return _search(spec, own, around, options, key, emit, tick)


def _cached(key: Signature, epochs: int, around: Surroundings, emit: Emit) -> Choice | None:
    entry, warning = around.cache.get(key)
    _warn(emit, warning)
    return None if entry is None else choice_of(entry, epochs)


def choice_of(entry: CachedPlan, epochs: int) -> Choice:
    """Return what is kept as a choice for a training of `epochs`: compiled only where that takes less time in all."""
    finding = entry.finding
    plan, prediction = finding.plan, finding.prediction
    gain = next((trial.ratio for trial in finding.trials if trial.knob == "compile" and trial.verdict == "won"), None)
    if plan.compile and gain and epochs * prediction.epoch_s * (gain - 1) < prediction.warm_s:
        plan, prediction = replace(plan, compile=False), _slower(prediction, gain)
    return Choice(
        plan=plan, source="cache", why="measured here before, in the same surroundings", cache="hit",
        predicted_epoch_s=prediction.over(epochs), cache_age_s=max(0.0, entry.age_s), finding=finding,
        prediction=prediction,
    )  # fmt: skip


def _slower(prediction: Prediction, factor: float) -> Prediction:
    """Return what the plan before takes, that was slower by `factor` and warm at once."""
    return Prediction(
        epoch_s=factor * prediction.epoch_s, low_s=factor * prediction.low_s, high_s=factor * prediction.high_s,
        step_s=factor * prediction.step_s, validation_s=factor * prediction.validation_s, gauge_s=prediction.gauge_s,
    )  # fmt: skip


def _search(
    spec: TrainSpec, own: Plan, around: Surroundings, options: Options, key: Signature, emit: Emit,
    tick: Callable[[], None],
) -> Choice:  # fmt: skip
    began = time.monotonic()
    heard: list[Trial] = []

    def tell(trial: Trial) -> None:
        heard.append(trial)
        emit("trial", asdict(trial))

    ledger = Ledger(around.cache.ledger(key), reuse=not options.force)
    task = _task(spec, own, around, options)
    with ledger, Lab(spec, around.store.path, around.directory, around.environment, tick) as lab:
        try:
            finding = search(task, lab, ledger, tell)
        except (NothingMeasured, OSError) as error:
            _warn(emit, f"calibration measured nothing: {error}; going on with your own plan")
            plan = error.plan if isinstance(error, NothingMeasured) else own
            return Choice(
                plan=plan, source="own", why="calibration measured nothing", cache="miss", trials=len(heard),
                calibration_seconds=time.monotonic() - began - lab.import_seconds, import_seconds=lab.import_seconds,
            )  # fmt: skip
    _warn(emit, around.cache.put(key, finding))
    return Choice(
        plan=finding.plan, source="measured", why=finding.why, predicted_epoch_s=finding.prediction.over(spec.epochs),
        cache="miss", trials=len(heard), finding=finding, prediction=finding.prediction,
        calibration_seconds=finding.calibration_seconds, import_seconds=finding.import_seconds,
    )  # fmt: skip


def _task(spec: TrainSpec, own: Plan, around: Surroundings, options: Options) -> Task:
    parts = split(spec, around.store)
    resources, path = around.resources, around.environment.get("PATH", "")
    return Task(
        own=own, batch_size=spec.batch_size, steps_per_epoch=parts.steps, validation=parts.validation,
        epochs=spec.epochs, memory_bytes=memory_for_training(resources),
        samples=options.samples or samples_for(resources.memory_bytes), exact=options.samples is not None,
        seconds=options.seconds, knobs=frozenset(options.knobs or KNOBS),
        space=Space(
            threads=thread_counts(resources), processors=max(1, len(resources.affinity)), bfloat16=has_bfloat16(),
            tcmalloc=find_tcmalloc() is not None, compiler=any(shutil.which(name, path=path) for name in COMPILERS),
        ),
    )  # fmt: skip


def memory_for_training(resources: Resources) -> int:
    """Return the bytes that a training process may have: what is not in use, less what its supervisor keeps."""
    return max(1, resources.headroom_bytes - reserve(resources.memory_bytes))


def _warn(emit: Emit, warning: str | None) -> None:
    if warning is not None:
        emit("warning", {"message": warning})
