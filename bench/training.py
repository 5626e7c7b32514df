"""One epoch of `cnn` on MNIST under the calibrated plan and under the user's, and the error of the prediction.

Runs `preflight train --dataset mnist --model cnn --json` for several seeds, each a whole real process with a
calibration, and beside each the same training under the user's own plan (plain torch), in turns.
"""

import json
import statistics
import subprocess
import tempfile
from typing import Final

from bench.calibration.common import PREFLIGHT
from bench.record import judged, samples, start
from worker.config.settings import load, service_environment

SEEDS: Final = (0, 1, 2)
PARITY: Final = 0.05
"""Points by which the accuracy under the calibrated plan may differ from that in float32, in the mean."""


def train(seed: int, *options: str) -> tuple[dict[str, float], str]:
    """Return the figures of one training, and the precision of its plan."""
    with tempfile.TemporaryDirectory() as artifacts:
        done = subprocess.run(
            [PREFLIGHT, "train", "--dataset", "mnist", "--model", "cnn", "--seed", str(seed), "--json", *options],
            env={**service_environment(load()), "PREFLIGHT_ARTIFACT_DIR": artifacts},
            stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
    result: dict[str, float] = json.loads(done.stdout)
    plan: dict[str, str] = json.loads(done.stdout)["plan"]
    return result, plan["precision"]


def main() -> None:
    """Measure and print."""
    calibrated, plain, precisions = [], [], []
    for seed in SEEDS:
        run, precision = train(seed, "--force-calibration")
        calibrated.append(run)
        precisions.append(precision)
        plain.append(train(seed, "--no-calibrate")[0])
    record = start("training", "python -m bench.training", "process starts, imports and calibration", SEEDS)
    record.head("one epoch of cnn on MNIST", "calibrated plan", "user's own plan (float32, contiguous, glibc)")
    for name, form in (("test_accuracy", ".2%"), ("samples_per_s", ",.0f"), ("measured_epoch_s", ".2f")):
        record.row(name, *(samples([run[name] for run in runs], form) for runs in (calibrated, plain)))
    ratios = [fast["samples_per_s"] / slow["samples_per_s"] for fast, slow in zip(calibrated, plain, strict=True)]
    errors = [run["predicted_epoch_s"] / run["measured_epoch_s"] - 1 for run in calibrated]
    means = [100 * statistics.mean(run["test_accuracy"] for run in runs) for runs in (calibrated, plain)]
    gained = means[0] - means[1]
    record.head("over the seeds", "figure", "bound", "")
    record.row("speed-up, seed by seed", samples(ratios, ".2f"), "", "")
    record.row("prediction against measurement", samples(errors, "+.1%"), "", "")
    record.row("mean test accuracy against the user's own plan", f"{gained:+.3f} points", f"{PARITY:g} points",
               judged(abs(gained) <= PARITY))  # fmt: skip
    record.row("calibrated plans in bfloat16", f"{precisions.count('bfloat16')} of {len(SEEDS)}", "", "")
    record.write()


if __name__ == "__main__":
    main()
