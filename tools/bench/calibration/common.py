"""Helpers of benchmarks: the data set, a calibration on this machine."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from calibration.cache.plan_cache import PlanCache
from calibration.choose import PlanChoice, choose_plan
from calibration.task import CalibrationContext, Options
from preflight.container.resources import detect
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from training.data.dataset_info import DatasetInfo
from training.data.prepare import prepare, prepared
from worker.config.settings import child_environment, load

PREFLIGHT: Final = str(Path(sys.executable).parent / "preflight")


def mnist() -> DatasetInfo:
    """Return the prepared data set."""
    settings = load()
    where = "mnist", settings.data_dir, settings.cache_dir
    return prepared(*where) or prepare(*where)


@contextmanager
def calibration_context() -> Iterator[CalibrationContext]:
    """Yield this machine as it is, with an empty cache and a separate directory."""
    with tempfile.TemporaryDirectory(prefix="bench-calibration-") as name:
        directory = Path(name)
        yield CalibrationContext(
            resources=detect(), store=mnist(), cache=PlanCache(directory / "cache"), directory=directory,
            environment=child_environment(),
        )  # fmt: skip


def choose(spec: TrainSpec, own: Plan, context: CalibrationContext) -> PlanChoice:
    """Calibrate, with warnings on stderr."""
    return choose_plan(spec, own, context, Options(force=True), print_warning, do_nothing)


def print_warning(kind: str, fields: dict[str, JsonValue]) -> None:
    """Print a warning."""
    if kind == "warning":
        print(fields["message"], file=sys.stderr)


def do_nothing() -> None:
    """Do nothing while processes measure."""


def format_plan(plan: Plan) -> str:
    """Return the fields that the grid varies, in words."""
    return f"{plan.allocator}, {plan.precision}, {plan.memory_format}, {plan.threads} thread(s)"
