"""A fresh interpreter that asks for a plan: `python -m bench.calibration.hit MODEL` prints how long that took."""

import json
import sys
import tempfile
import time
from pathlib import Path

from bench.calibration.common import do_nothing, print_warning
from calibration.cache.plan_cache import PlanCache
from calibration.choose import choose_plan
from calibration.task import CalibrationContext, Options
from training.data.prepare import prepared
from training.system.resources import detect
from worker.config.settings import child_environment, load
from worker.wire import JOB_TYPE, parse_job


def main() -> None:
    """Ask as `preflight calibrate` does, and time nothing but the choice."""
    job, settings = parse_job({"type": JOB_TYPE, "dataset": "mnist", "model": sys.argv[1]}), load()
    spec, resources = job.spec(), detect()
    store = prepared("mnist", settings.data_dir, settings.cache_dir)
    if store is None:
        raise SystemExit("the data set is not prepared")
    with tempfile.TemporaryDirectory() as directory:
        context = CalibrationContext(
            resources=resources, store=store, cache=PlanCache(settings.cache_dir), directory=Path(directory),
            environment=child_environment(),
        )  # fmt: skip
        own = job.plan.complete(spec, resources.cores)
        began = time.perf_counter()
        choice = choose_plan(spec, own, context, Options(), print_warning, do_nothing)
        seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "hit": choice.cache == "hit", "torch": "torch" in sys.modules}))


if __name__ == "__main__":
    main()
