"""What one epoch of `cnn` on MNIST reaches here, and whether calibration predicted it.

Runs `preflight train --dataset mnist --model cnn --json` for several seeds, each a whole real process with a
calibration of its own, and beside each the same training under the user's own plan (plain torch), in turns.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.tables import judged, spread
from worker.config.settings import load, service_environment

SEEDS: Final = (0, 1, 2)
PARITY: Final = 0.05
"""Points by which the accuracy under the calibrated plan may differ from that in float32, in the mean."""
PREFLIGHT: Final = str(Path(sys.executable).parent / "preflight")


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
    print("| one epoch of cnn on MNIST | calibrated plan | user's own plan (float32, contiguous, glibc) |")
    print("|---|---|---|")
    for name, form in (("test_accuracy", ".2%"), ("samples_per_s", ",.0f"), ("measured_epoch_s", ".2f")):
        cells = [spread([run[name] for run in runs], form) for runs in (calibrated, plain)]
        print(f"| {name} | {' | '.join(cells)} |")
    ratios = [fast["samples_per_s"] / slow["samples_per_s"] for fast, slow in zip(calibrated, plain, strict=True)]
    errors = [run["predicted_epoch_s"] / run["measured_epoch_s"] - 1 for run in calibrated]
    print(f"\nspeed-up, seed by seed: {spread(ratios, '.2f')}")
    print(f"prediction against measurement: {spread(errors, '+.1%')}")
    means = [100 * statistics.mean(run["test_accuracy"] for run in runs) for runs in (calibrated, plain)]
    gained = means[0] - means[1]
    print(f"test accuracy in the mean: {gained:+.3f} points (bound {PARITY:g}: {judged(abs(gained) <= PARITY)}); "
          f"{precisions.count('bfloat16')} of {len(SEEDS)} calibrated plans compute in bfloat16")  # fmt: skip


if __name__ == "__main__":
    main()
