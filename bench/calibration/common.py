"""What the parts share: where they calibrate, and how they print."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from calibration.cache.plan_cache import PlanCache
from calibration.choose import PlanChoice, choose_plan
from calibration.statistics import Comparison
from calibration.task import CalibrationContext, Options
from training.config.plan import Plan
from training.config.spec import TrainSpec
from training.data.dataset_info import DatasetInfo
from training.data.prepare import prepare, prepared
from training.system.resources import detect
from worker.config.settings import child_environment, load

PREFLIGHT: Final = str(Path(sys.executable).parent / "preflight")
MODELS: Final = ("cnn", "resnet18")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of the command line."""

    kills: int
    parallel: int
    seed: int
    filters: Sequence[str]
    """Cells of the matrix: those whose names match one of them; all without any."""
    again: bool
    """Whether to measure them again."""


def mnist() -> DatasetInfo:
    """Return the prepared data set."""
    settings = load()
    where = "mnist", settings.data_dir, settings.cache_dir
    return prepared(*where) or prepare(*where)


@contextmanager
def calibration_context() -> Iterator[CalibrationContext]:
    """Yield this machine as it is, with an empty cache and a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-calibration-") as name:
        directory = Path(name)
        yield CalibrationContext(
            resources=detect(), store=mnist(), cache=PlanCache(directory / "cache"), directory=directory,
            environment=child_environment(),
        )  # fmt: skip


def choose(spec: TrainSpec, own: Plan, context: CalibrationContext) -> PlanChoice:
    """Calibrate, with what goes wrong on stderr."""
    return choose_plan(spec, own, context, Options(force=True), print_warning, do_nothing)


def print_warning(kind: str, fields: dict[str, JsonValue]) -> None:
    """Print a warning."""
    if kind == "warning":
        print(fields["message"], file=sys.stderr)


def do_nothing() -> None:
    """Do nothing while processes measure."""


def format_plan(plan: Plan) -> str:
    """Return what the grid varies."""
    return f"{plan.allocator}, {plan.precision}, {plan.memory_format}, {plan.threads} thread(s)"


def interval(comparison: Comparison) -> str:
    """Return a ratio with the ends of its 95 % interval."""
    return f"{comparison.ratio:.3f} ({comparison.low:.3f} to {comparison.high:.3f})"
