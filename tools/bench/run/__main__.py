"""Steps a second of unmodified scripts under `preflight run`, under fixed settings and as plain commands.

PYTHONPATH=tests python -m tools.bench.run [SCRIPT ...] [--cpus 2 1] [--neighbours 0 1] [--seconds 120] [--pairs 5]

Each cell is a script in a container with a CPU quota, beside so many processes `while True: pass` outside of it. All
variants take turns; every run counts. Steps of the first `--skip` seconds are left out. `preflight run` is compared
with the fixed settings that were fastest in the median.
"""

import argparse
import array
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.bench.container import container
from tools.bench.record import Record, start

SCRIPTS: Final = Path(__file__).parent / "scripts"
RECORDED: Final = Path(__file__).with_name("recorded.py")
PREFLIGHT: Final = str(Path(sys.executable).with_name("preflight"))
MEMORY: Final = 4 << 30
THREADS: Final = (1, 2)
GRID: Final = tuple((threads, malloc) for malloc in ("default", "tuned") for threads in THREADS)
PLAIN: Final = "plain"
TUNED: Final = "preflight run"
TIMEOUT: Final = 120.0
"""Seconds that imports and the first step may take beside neighbours."""


@dataclass(frozen=True, slots=True)
class Options:
    seconds: float
    skip: float
    pairs: int


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted(path.stem for path in SCRIPTS.glob("*.py"))
    parser.add_argument("scripts", nargs="*", help=f"all without any: {', '.join(names)}")
    parser.add_argument("--cpus", type=float, nargs="+", default=[0.5, 1, 1.5, 2])
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--skip", type=float, default=60.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write tools/bench/results/run.json")
    asked = parser.parse_args()
    unknown = sorted(set(asked.scripts) - set(names))
    if unknown:
        parser.error(f"no script {', '.join(unknown)}; there are {', '.join(names)}")
    record = start("run", "PYTHONPATH=tests python -m tools.bench.run")
    options = Options(asked.seconds, asked.skip, asked.pairs)
    print(f"load before: {os.getloadavg()[0]:.1f}; seconds {options.seconds:g}, of them left out {options.skip:g}")
    record.head(
        "script", "CPUs", "neighbours", "best fixed", "steps/s", "preflight run / best", "preflight run / plain"
    )
    for neighbours in asked.neighbours:
        for cpus in asked.cpus:
            for script in asked.scripts or names:
                _measure_cell(record, script, cpus, neighbours, options)
    if asked.write:
        record.write()


def _measure_cell(record: Record, script: str, cpus: float, neighbours: int, options: Options) -> None:
    variants = [PLAIN, TUNED, *(f"{threads} {malloc}" for threads, malloc in GRID)]
    rates: dict[str, list[float]] = {name: [] for name in variants}
    with container(cpus, MEMORY) as box, _neighbours(neighbours):
        for turn in range(options.pairs):
            for name in variants[turn % len(variants) :] + variants[: turn % len(variants)]:
                rates[name].append(_steps_per_s(box.enter, script, name, options))
    fixed = [name for name in variants if name not in (PLAIN, TUNED)]
    best = max(fixed, key=lambda name: statistics.median(rates[name]))
    record.row(
        script, f"{cpus:g}", str(neighbours), best, f"{statistics.median(rates[best]):.2f}",
        _ratios(rates[TUNED], rates[best]), _ratios(rates[TUNED], rates[PLAIN]),
    )  # fmt: skip


def _ratios(mine: Sequence[float], others: Sequence[float]) -> str:
    """Return the median of the ratios of runs that followed one another, and their range."""
    found = [one / other if other else float("inf") for one, other in zip(mine, others, strict=True)]
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def _steps_per_s(enter: Sequence[str], script: str, variant: str, options: Options) -> float:
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as folder:
        out = Path(folder) / "ends"
        fixed = []
        if variant not in (PLAIN, TUNED):
            threads, malloc = variant.split()
            fixed = ["--threads", threads, "--malloc", malloc]
        command = [sys.executable, str(RECORDED), str(out), str(options.seconds), str(SCRIPTS / f"{script}.py"), *fixed]
        under = [PREFLIGHT, "run", "--quiet", "--"] if variant == TUNED else []
        try:
            subprocess.run(
                [*enter, *under, *command], check=True, timeout=TIMEOUT + 2 * options.seconds, capture_output=True
            )
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"{script} failed: {error.stderr.decode(errors='replace')[-2000:]}") from error
        ends = array.array("d", out.read_bytes())
    counted = [end for end in ends if end - ends[0] >= options.skip]
    return (len(counted) - 1) / (counted[-1] - counted[0]) if len(counted) > 1 else 0.0


@contextmanager
def _neighbours(count: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.5 * bool(busy))
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


if __name__ == "__main__":
    main()
