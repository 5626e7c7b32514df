"""What the hook of `preflight run` costs a step.

    PYTHONPATH=tests python -m tools.bench.run.cost

A script steps an optimizer of one number, which takes microseconds, as a plain command and under `preflight run`, in
turns. The last half of its steps counts, when the search has ended. `--same-start` as in the table: the cost of a step
does not depend on what the start sets.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools.bench.record import judged, samples, start
from tools.bench.run.cells import PLAIN, PREFLIGHT, TUNED

PAIRS: Final = 5
STEPS: Final = 400_000
BOUND: Final = 5.0
"""Most microseconds a step."""
SCRIPT: Final = f"""
import sys, time, torch
number = torch.nn.Parameter(torch.zeros(1))
number.grad = torch.zeros(1)
optimizer = torch.optim.SGD([number], lr=0.1, foreach=False)
def step(count):
    began = time.perf_counter()
    for _ in range(count):
        optimizer.step()
    return 1e6 * (time.perf_counter() - began) / count
step({STEPS // 2})
print(step({STEPS // 2}))
"""


def main() -> None:
    """Measure and print."""
    record = start("run-cost", "PYTHONPATH=tests python -m tools.bench.run.cost", "the first half of the steps")
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as folder:
        script = Path(folder) / "steps.py"
        script.write_text(SCRIPT)
        ways = {PLAIN: (), TUNED: (PREFLIGHT, "run", "--quiet", "--same-start", "--")}
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(PAIRS):
            for name, under in ways.items():
                printed = subprocess.check_output([*under, sys.executable, str(script)], text=True)
                found[name].append(float(printed))
    added = [tuned - plain for plain, tuned in zip(found[PLAIN], found[TUNED], strict=True)]
    record.head("an optimizer's step on one number", "median (range)", "bound", "")
    for name, microseconds in found.items():
        record.row(name, samples(microseconds, ".1f", " us"), "", "")
    reached = statistics.median(added) <= BOUND
    record.row("the hook adds", samples(added, ".1f", " us"), f"{BOUND:g} us", judged(reached))
    record.write()


if __name__ == "__main__":
    main()
