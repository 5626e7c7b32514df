"""Helpers of all parts: plans for a spec, children that answer with one line of JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import JsonValue, TypeAdapter

from calibration.cache.signature import has_bfloat16
from calibration.choose import PlanChoice
from preflight.contract.plan import Plan, Precision
from preflight.contract.spec import TrainSpec
from tools.bench.calibration.common import calibration_context, choose
from training.process.launch import environment_for
from worker.config.settings import child_environment

SPEC, PLAN = TypeAdapter(TrainSpec), TypeAdapter(Plan)
FIGURES: TypeAdapter[dict[str, float]] = TypeAdapter(dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of the command line."""

    recipes: tuple[str, ...]


def own_plan(spec: TrainSpec) -> Plan:
    """Return the plan of a user who sets nothing: plain torch on all cores."""
    return Plan(threads=len(os.sched_getaffinity(0)), micro_batch=spec.batch_size)


def fast_plan(spec: TrainSpec) -> Plan:
    """Return the plan that wins on most processors of this kind, for measurements without a calibration."""
    return replace(own_plan(spec), precision=fast_precision(), memory_format="channels_last")


def fast_precision() -> Precision:
    """Return bfloat16 where the processor has instructions for it, which it is slow without."""
    return "bfloat16" if has_bfloat16() else "float32"


def calibrated(spec: TrainSpec) -> PlanChoice:
    """Calibrate for a spec, from nothing."""
    with calibration_context() as context:
        return choose(spec, own_plan(spec), context)


def as_json(spec: TrainSpec, plan: Plan) -> dict[str, JsonValue]:
    """Return both for a request."""
    return {"spec": SPEC.dump_python(spec, mode="json"), "plan": PLAN.dump_python(plan, mode="json")}


def ask(module: str, request: Mapping[str, JsonValue], plan: Plan | None = None) -> dict[str, float]:
    """Run `python -m module REQUEST` in the setting of `plan`, and return the last line that it printed."""
    environment = child_environment() if plan is None else environment_for(plan, child_environment())
    printed = subprocess.run(
        [sys.executable, "-m", module, json.dumps(request)], env=environment, stdout=subprocess.PIPE, check=True
    ).stdout
    return FIGURES.validate_json(printed.strip().rpartition(b"\n")[2])
