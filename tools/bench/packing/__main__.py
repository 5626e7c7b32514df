"""Jobs an hour of a real worker with a real Redis, packed and one at a time, in turns; every run counts.

python -m tools.bench.packing [cnn fast resnet18 mixed] [--jobs 8] [--pairs 5] [--write]
python -m tools.bench.packing simulate [--write]

Each run has empty directories, so that its first job calibrates. It is appended to results/packing.jsonl when it ends;
the command goes on after an interruption with the runs that are missing. Sides: `off` is one job at a time, `packed`
the default, `two` two workers on one state directory.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from preflight import Client
from preflight.redis.server.embedded import redis_server
from preflight.wire import JOB_TYPE, TrainJob
from tools.bench.packing.simulated import simulate
from tools.bench.record import RESULTS, Record, Samples, judged, samples, start
from tools.bench.versions import environment

RUNS: Final = RESULTS / "packing.jsonl"
TREE: Final = Path(__file__).parents[3]
SIDES: Final[Mapping[str, tuple[int, Mapping[str, str]]]] = {
    "off": (1, {"PREFLIGHT_PACKING": "off"}),
    "packed": (1, {"PREFLIGHT_PACKING": "throughput"}),
    "two": (2, {"PREFLIGHT_PACKING": "throughput", "PREFLIGHT_PROCESSES": "1"}),
}
"""Side -> workers and their variables."""
MODELS: Final[Mapping[str, dict[str, str | int]]] = {
    "cnn": {"model": "cnn", "epochs": 2},
    "fast": {"recipe": "fast"},
    "resnet18": {"model": "resnet18", "epochs": 1, "max_steps": 60},
}
MIXES: Final[Mapping[str, tuple[str, ...]]] = {**{name: (name,) for name in MODELS}, "mixed": tuple(MODELS)}
BOUNDS: Final = {"cnn": 1.15, "fast": 1.1, "resnet18": 0.98, "mixed": 1.05}
"""Mix -> jobs an hour packed, in those of one at a time."""
TWO_WORKERS: Final = 0.95
"""Jobs an hour of two workers, in those of one that packs."""


class Run(BaseModel):
    """One run: all jobs of a mix, from the first one enqueued to the last one ended."""

    mix: str
    side: str
    pair: int
    jobs: int
    seconds: float
    failed: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.packing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mixes", nargs="*", help=f"of {', '.join(MIXES)}; all by default; or simulate")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write tools/bench/results/packing.json")
    asked = parser.parse_args()
    mixes = asked.mixes or [*MIXES]
    if unknown := sorted({*mixes} - {*MIXES, "simulate"}):
        parser.error(f"no such mix: {', '.join(unknown)}; there are {', '.join([*MIXES, 'simulate'])}")
    if mixes == ["simulate"]:
        record = start("packing-simulated", "python -m tools.bench.packing simulate")
        simulate(record)
    else:
        record = start("packing", f"python -m tools.bench.packing {' '.join(mixes)}")
        for mix in mixes:
            _measure(mix, asked.jobs, asked.pairs)
        _table(record, mixes)
    if asked.write:
        record.write()


def _measure(mix: str, jobs: int, pairs: int) -> None:
    """Make the runs of a mix that are missing; the sides take turns, in another order in every second pair."""
    done = {(run.mix, run.pair, run.side) for run in _runs()}
    for pair in range(pairs):
        for side in [*SIDES] if pair % 2 == 0 else [*SIDES][::-1]:
            if (mix, pair, side) in done:
                continue
            run = _run(mix, side, pair, jobs)
            with RUNS.open("a") as file:
                file.write(run.model_dump_json() + "\n")
            print(f"{mix}, pair {pair}, {side}: {run.seconds:.1f} s, {run.failed} failed", flush=True)


def _run(mix: str, side: str, pair: int, jobs: int) -> Run:
    workers, variables = SIDES[side]
    with redis_server() as url, tempfile.TemporaryDirectory(prefix="packing-", ignore_cleanup_errors=True) as scratch:
        client, directory = Client(url), Path(scratch)
        names = [MIXES[mix][number % len(MIXES[mix])] for number in range(jobs)]
        ids = [
            client.enqueue(TrainJob.model_validate({"type": JOB_TYPE, "dataset": "mnist", **MODELS[name]})).job_id
            for name in names
        ]
        began = time.monotonic()
        with (directory / "log").open("wb") as log:
            started = [
                subprocess.Popen(
                    [sys.executable, "-P", "-m", "worker.cli", "worker"], cwd=TREE, stdin=subprocess.DEVNULL,
                    env={**environment(TREE, url, directory), "PREFLIGHT_REPORT": "off", **variables},
                    stdout=log, stderr=log,
                )
                for _ in range(workers)
            ]  # fmt: skip
        try:
            while any(client.is_active(job_id) for job_id in ids):
                if any(process.poll() is not None for process in started):
                    raise SystemExit(f"a worker has ended:\n{(directory / 'log').read_text()[-2000:]}")
                time.sleep(0.05)
            seconds = time.monotonic() - began
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait()
        failed = sum(client.status(job_id).status != "finished" for job_id in ids)
    return Run(mix=mix, side=side, pair=pair, jobs=jobs, seconds=seconds, failed=failed)


def _runs() -> list[Run]:
    if not RUNS.exists():
        return []
    return [Run.model_validate_json(line) for line in RUNS.read_text().splitlines() if line]


def _table(record: Record, mixes: list[str]) -> None:
    """Add the figures of all runs; a pair is one run of each side."""
    record.head(
        "jobs", "one at a time, jobs an hour", "packed", "packed of one at a time", "bound", "", "two workers of packed"
    )
    runs = _runs()
    for mix in mixes:
        by_side = {side: _hourly(runs, mix, side) for side in SIDES}
        gains = [packed / alone for packed, alone in zip(by_side["packed"], by_side["off"], strict=False)]
        twos = [two / packed for two, packed in zip(by_side["two"], by_side["packed"], strict=False)]
        cells: list[Samples] = [
            samples(by_side["off"], ",.0f"),
            samples(by_side["packed"], ",.0f"),
            samples(gains, ".2f"),
        ]
        reached = judged(sorted(gains)[len(gains) // 2] >= BOUNDS[mix])
        record.row(mix, *cells, f"{BOUNDS[mix]}", reached, samples(twos, ".2f"))
    failed = sum(run.failed for run in runs)
    record.note(f"{len(runs)} runs of {sum(run.jobs for run in runs)} jobs, of which {failed} failed; "
                f"two workers are to reach {TWO_WORKERS} of one that packs.")  # fmt: skip


def _hourly(runs: list[Run], mix: str, side: str) -> list[float]:
    mine = sorted((run for run in runs if (run.mix, run.side) == (mix, side)), key=lambda run: run.pair)
    return [3600 * run.jobs / run.seconds for run in mine]


if __name__ == "__main__":
    main()
