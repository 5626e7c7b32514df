"""A process that takes some training steps of a spec under a plan; prints samples per second."""

import json
import sys
from pathlib import Path
from typing import Final

from calibration.measure.candidate import Candidate
from tools.bench.speed.common import PLAN, SPEC, from_json
from training.data.dataset_store import open_dataset
from training.step.train_step import prepare_process

WARM_UP: Final = 3


def main() -> None:
    """Measure."""
    asked = json.loads(sys.argv[1])
    spec = from_json(asked["spec"], SPEC)
    plan = from_json(asked["plan"], PLAN)
    prepare_process(plan)
    candidate = Candidate(spec, plan, open_dataset(Path(asked["store"])))
    candidate.run(WARM_UP)
    seconds = candidate.run(asked["steps"])
    print(json.dumps({"samples_per_s": len(seconds) * spec.batch_size / sum(seconds)}))


if __name__ == "__main__":
    main()
