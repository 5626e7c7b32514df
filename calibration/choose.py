"""Chooses the plan for a job: from the cache, else measured by a child, else the user's own. Never raises for it."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import JsonValue, TypeAdapter

from calibration import child as calibration_child
from calibration.cache import PlanCache
from calibration.candidates import thread_counts
from calibration.child import REQUEST, CalibrationRequest
from calibration.finding import Confidence, Finding
from calibration.signature import signature
from training.errors import ChildFailed, OutOfMemory
from training.journal import Record
from training.plan import Plan
from training.process import Child, follow
from training.resources import Resources
from training.spec import TrainSpec
from training.store import StoreInfo

DEFAULT_SECONDS: Final = 45.0
"""Most time a calibration may take, the import of torch apart; the child takes a share of the training's."""
GRACE: Final = 10.0
"""Seconds after the deadline in which the child may finish the plan it has begun."""
IMPORT_LIMIT: Final = 120.0
"""Seconds after which a child that has not said `start` is given up."""
TIERS: Final = ((1 << 30, 8), (2 << 30, 12), (4 << 30, 16))
"""Memory below this many bytes -> steps measured of each plan; from 4 GiB on, `MOST_SAMPLES`."""
MOST_SAMPLES: Final = 32

PLAN = TypeAdapter(Plan)

Emit = Callable[[str, dict[str, JsonValue]], None]
"""Takes what happens, as (kind, fields): `trial`, `reject`, `warning`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to calibrate."""

    calibrate: bool = True
    """False: the user's own plan, unmeasured."""
    force: bool = False
    """Measure even when the cache has a plan."""
    samples: int | None = None
    """Steps measured of each plan; None: by memory tier."""
    seconds: float = DEFAULT_SECONDS


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

    `tick` is called while the child measures; what it raises (a cancellation) ends the child and is raised on.
    """
    if not options.calibrate:
        return Choice(plan=own, source="own", why="calibration is off")
    key = signature(spec, own, around.resources, around.store)
    if not options.force:
        entry, warning = around.cache.get(key)
        _warn(emit, warning)
        if entry is not None:
            return Choice(
                plan=entry.finding.plan, source="cache", why="measured here before, in the same surroundings",
                predicted_epoch_s=entry.finding.prediction.over(spec.epochs), cache="hit",
                cache_age_s=max(0.0, entry.age_s), finding=entry.finding,
            )  # fmt: skip
    return _measure(spec, own, around, options, emit, tick)


def _measure(
    spec: TrainSpec, own: Plan, around: Surroundings, options: Options, emit: Emit, tick: Callable[[], None]
) -> Choice:
    began = time.monotonic()
    request = CalibrationRequest(
        spec=spec, baseline=own, threads=thread_counts(around.resources),
        samples=options.samples or samples_for(around.resources.memory_bytes),
        seconds=options.seconds, store=around.store.path,
    )  # fmt: skip
    listener = _Listener(emit, options.seconds)
    child: Child | None = None
    try:
        body = REQUEST.dump_json(request)
        with Child(calibration_child.MODULE, body, around.directory, around.environment) as child:
            for record in follow(child, lambda: listener.tick(tick)):
                listener.hear(record)
    except (ChildFailed, OutOfMemory, OSError, _Overdue) as error:
        for record in child.records() if child else []:  # what it wrote while it was being ended
            listener.hear(record)
        _warn(emit, f"calibration ended early: {error}; using the best plan measured until then")
    elapsed = time.monotonic() - began - listener.import_seconds
    return _conclude(listener, own, elapsed)


class _Overdue(Exception):
    """The child is past its deadline."""


class _Listener:
    """Hears the child and keeps its best improvement."""

    def __init__(self, emit: Emit, seconds: float) -> None:
        self._emit = emit
        self._seconds = seconds
        self._deadline = time.monotonic() + IMPORT_LIMIT
        self._late = f"it did not begin within {IMPORT_LIMIT:.0f} s"
        self.best: dict[str, JsonValue] | None = None
        self.import_seconds = 0.0
        self.trials = 0
        self.confidence: Confidence | None = None
        """None until the child is done: what a dying child found out is used, but not kept."""

    def tick(self, tick: Callable[[], None]) -> None:
        tick()
        if time.monotonic() > self._deadline:
            raise _Overdue(self._late)

    def hear(self, record: Record) -> None:
        match record.kind:
            case "start":
                self._deadline = time.monotonic() + self._seconds + GRACE
                self._late = f"it did not end within {GRACE:.0f} s after its budget of {self._seconds:.0f} s"
                match record.payload:
                    case {"import_seconds": float(seconds)}:
                        self.import_seconds = seconds
            case "trial":
                self.trials += 1
                self._emit("trial", record.payload)
            case "reject":
                self._emit("reject", record.payload)
            case "improve":
                self.best = record.payload
            case "done":
                self.confidence = "high" if record.payload.get("complete") is True else "low"


def _conclude(heard: _Listener, own: Plan, elapsed: float) -> Choice:
    match heard.best:
        case {"plan": dict(fields), "predicted_epoch_s": float(predicted)}:
            plan = PLAN.validate_json(json.dumps(fields))
        case _:
            return Choice(
                plan=own, source="own", why="calibration measured nothing", cache="miss",
                trials=heard.trials, calibration_seconds=elapsed, import_seconds=heard.import_seconds,
            )  # fmt: skip
    gain = "no other plan was faster" if plan == own else f"fastest of {heard.trials} measured plans"
    return Choice(
        plan=plan, source="measured", why=gain, predicted_epoch_s=predicted, cache="miss",
        trials=heard.trials, calibration_seconds=elapsed, import_seconds=heard.import_seconds,
    )  # fmt: skip


def _warn(emit: Emit, warning: str | None) -> None:
    if warning is not None:
        emit("warning", {"message": warning})
