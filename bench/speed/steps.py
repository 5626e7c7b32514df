"""A process that takes some training steps of a spec under a plan; prints samples per second."""

import json
import sys
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from calibration.measure import Contender
from training.plan import Plan
from training.spec import TrainSpec
from training.step import prepare_process
from training.store import open_store

WARM_UP: Final = 3


def main() -> None:
    """Measure."""
    asked = json.loads(sys.argv[1])
    spec = TypeAdapter(TrainSpec).validate_json(json.dumps(asked["spec"]))
    plan = TypeAdapter(Plan).validate_json(json.dumps(asked["plan"]))
    prepare_process(plan)
    contender = Contender(spec, plan, open_store(Path(asked["store"])))
    contender.run(WARM_UP)
    seconds = contender.run(asked["steps"])
    print(json.dumps({"samples_per_s": len(seconds) * spec.batch_size / sum(seconds)}))


if __name__ == "__main__":
    main()
