"""One calibration, in a process of its own that can be killed: `python -m bench.calibration.one REQUEST ANSWER`.

Reads a `Request` from the one file and leaves an `Answer` in the other when it comes to its end.
"""

import os
import sys
from pathlib import Path
from typing import Final

from pydantic import JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass

from calibration.cache.plan_cache import PlanCache
from calibration.choose import PlanChoice, choose_plan
from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.measure.process_pool import ProcessPool
from calibration.result import Knob
from calibration.task import CalibrationContext, Options
from training.config.plan import Plan
from training.config.spec import STRICT, TrainSpec
from training.data.dataset_info import read_info
from training.system.atomic_files import write_atomically
from training.system.resources import detect

KNOBS: Final[tuple[Knob, ...]] = ("affinity", "precision", "micro_batch")
"""Two settings, so that two processes measure; and few plans, so that it is short."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Request:
    """What is to be calibrated, and where."""

    spec: TrainSpec
    own: Plan
    store: Path
    cache: Path
    directory: Path
    seconds: float
    order: bool = False
    """Whether the user's own plan is measured first, by a direct order: nothing predicts whether it fits."""
    prove: Plan | None = None
    """A plan under which steps are trained at last, to see that there is memory for it."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Answer:
    """What came of it."""

    choice: PlanChoice
    warnings: tuple[str, ...]
    ordered: str
    """What became of the direct order; empty where there was none, or where it was carried out."""
    unfit: str
    """Why no steps could be trained under the plan to be proven; empty where they were, or there was none."""


REQUEST, ANSWER = TypeAdapter(Request), TypeAdapter(Answer)


def main() -> None:
    """Calibrate."""
    request = REQUEST.validate_json(Path(sys.argv[1]).read_bytes())
    context = CalibrationContext(
        resources=detect(), store=read_info(request.store), cache=PlanCache(request.cache),
        directory=request.directory, environment=dict(os.environ),
    )  # fmt: skip
    warnings: list[str] = []

    def hear(kind: str, fields: dict[str, JsonValue]) -> None:
        if kind == "warning":
            warnings.append(str(fields["message"]))

    options = Options(seconds=request.seconds, knobs=KNOBS)
    ordered = step_under(request.own, request, context) if request.order else ""
    choice = choose_plan(request.spec, request.own, context, options, hear, lambda: None)
    unfit = step_under(request.prove, request, context) if request.prove else ""
    answer = Answer(choice=choice, warnings=tuple(warnings), ordered=ordered, unfit=unfit)
    write_atomically(Path(sys.argv[2]), ANSWER.dump_json(answer))


def step_under(plan: Plan, request: Request, context: CalibrationContext) -> str:
    """Train two steps under a plan in a process of its own; return what went wrong."""
    with ProcessPool(request.spec, request.store, request.directory, context.environment, lambda: None) as pool:
        try:
            pool.measure(plan, 1, settle=0, warm_up=1)
        except (WorkerLost, PlanFailed) as error:
            return str(error)
    return ""


if __name__ == "__main__":
    main()
