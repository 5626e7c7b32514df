"""Cold jobs on a shared machine: with an empty plan cache, next to busy processes and next to another worker.

    PYTHONPATH=tests python -m tools.bench.cold [--minutes N]
    PYTHONPATH=tests python -m tools.bench.cold table

Each run is a line of tools/bench/results/calibration-cold.jsonl; the next call continues after it: 40 cold runs, and
four jobs by one worker and by two, 35 minutes in all. Every run counts: none is left out, and none is made again.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from calibration.cache.signature import has_bfloat16
from preflight import Client
from preflight.redis.server.embedded import redis_server
from preflight.wire import JOB_TYPE, TrainJob
from tools.bench.calibration.common import PREFLIGHT
from tools.bench.lines import Deadline, ResultFile, add_minutes, newest_minor
from tools.bench.record import RESULTS, Record, describe_machine, judged, samples, start
from tools.faults.means import neighbours

COMMAND: Final = "python -m tools.bench.cold"
COLD_RUNS: Final[Mapping[int, int]] = {1: 20, 2: 10, 4: 10}
"""Number of busy processes -> cold runs next to them."""
FIXED_RUNS: Final = 2
"""Runs of the best fixed plan before them, next to as many busy processes; the quicker one counts."""
TIMES: Final = 1.5
LATER_SECONDS: Final = 10.0
"""A cold run may take `TIMES` as long as the best fixed plan, or `LATER_SECONDS` more, whichever is more."""
JOBS: Final = 4
JOB_EPOCHS: Final = 2
ROUNDS: Final = 2
WORKERS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "one worker": ((),), "two workers": ((), ()), "one worker, `--processes 2`": (("--processes", "2"),),
}  # fmt: skip
"""Name -> options of each worker."""
NO_WORSE: Final = 1.05
"""Two workers are no slower than one within this: such a series repeats within 5 % or so."""
TRAIN: Final = ("train", "--dataset", "mnist", "--model", "cnn", "--epochs", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: the best fixed plan or a cold job next to busy processes, or several jobs by workers."""

    kind: Literal["fixed", "cold", "jobs"]
    beside: str
    """Number of busy processes; for `jobs` the workers."""
    number: int
    seconds: float
    """Seconds of the whole command, or until all jobs had ended."""
    failed: bool = False
    calibration_s: float = 0.0
    train_s: float = 0.0
    """Seconds of both in the log of a command; 0: the log has none."""
    version: str = ""
    at: str = ""
    machine: str = ""

    @property
    def place(self) -> tuple[str, str, int]:
        """Kind, place and number, which identify the run."""
        return self.kind, self.beside, self.number


FILE: Final = ResultFile(RESULTS / "calibration-cold.jsonl", TypeAdapter(Run))


RECORD: Final = TypeAdapter(dict[str, JsonValue])
"""A line of the log."""


def main() -> None:
    """Make the missing runs, and write the table of all."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="?", choices=["table"], help="measure nothing")
    add_minutes(parser)
    asked = parser.parse_args()
    if not asked.words:
        measure(Deadline.after(asked.minutes))
    record = start("calibration-cold", COMMAND, "nothing: whole commands")
    fill(record)
    record.write()


def planned() -> list[Run]:
    """Return every run that is to be made, in its order."""
    runs: list[Run] = []
    for count, times in COLD_RUNS.items():
        runs += [Run(kind="fixed", beside=str(count), number=each, seconds=0.0) for each in range(FIXED_RUNS)]
        runs += [Run(kind="cold", beside=str(count), number=each, seconds=0.0) for each in range(times)]
    for each in range(ROUNDS):
        runs += [Run(kind="jobs", beside=workers, number=each, seconds=0.0) for workers in WORKERS]
    return runs


def measure(deadline: Deadline) -> None:
    """Make the runs that this minor version lacks, one after the other, until the time is over."""
    machine, mine = describe_machine(), version("preflight-worker")
    with FILE.measuring() as writer:
        made = {run.place for run in of_version(FILE.read().values, newest_minor([mine]))}
        for run in planned():
            if run.place in made:
                continue
            if deadline.is_over():
                print("runs are left; call it again to continue")
                return
            writer.begin(" ".join(map(str, run.place)))
            done = _jobs(run) if run.kind == "jobs" else _beside(run)
            at = datetime.now(UTC).isoformat(timespec="seconds")
            writer.append(replace(done, version=mine, at=at, machine=machine))
            print(f"{run.kind}, {run.beside}, {run.number}: {done.seconds:.1f} s{', failed' * done.failed}", flush=True)


def of_version(runs: Sequence[Run], minor: str) -> list[Run]:
    """Return the runs of a minor version."""
    return [run for run in runs if run.version.startswith(minor)]


def fill(record: Record) -> None:
    """Add the tables of every run of the newest minor version."""
    found = FILE.read()
    minor = newest_minor([run.version for run in found.values])
    runs = of_version(found.values, minor)
    if not runs:
        raise SystemExit(f"nothing was measured yet; run `{COMMAND}`")
    record.version, record.date = max(run.version for run in runs), max(run.at for run in runs)[:10]
    record.machine = "; ".join(sorted({run.machine for run in runs}))
    bound = f"bound: {TIMES:g}x or {LATER_SECONDS:.0f} s more"
    record.head("`while True: pass`", "best fixed plan, s", "cold job, s", "slowest", bound, "")
    for count, times in COLD_RUNS.items():
        fixed, cold = (_seconds(runs, kind, str(count)) for kind in ("fixed", "cold"))
        if not fixed or not cold:
            continue
        best = min(fixed)
        most = max(TIMES * best, best + LATER_SECONDS)
        within = sum(seconds <= most for seconds in cold)
        missing = f", {times - len(cold)} not made yet" if len(cold) < times else ""
        record.row(
            str(count), samples(fixed, ".1f"), samples(cold, ".1f"), f"{max(cold) / best:.2f}x",
            f"{within} of {len(cold)} within {most:.1f} s{missing}", judged(within == len(cold)),
        )  # fmt: skip
    record.note(f"Every run counts; {sum(run.failed for run in runs)} failed, and {found.lost_of(minor)} did not end.")
    alone = _seconds(runs, "jobs", "one worker")
    if alone:
        record.head(f"{JOBS} jobs of {JOB_EPOCHS} epochs", "seconds", "against one worker")
        for workers in WORKERS:
            taken = _seconds(runs, "jobs", workers)
            if taken:
                record.row(workers, samples(taken, ".1f"), f"{sum(taken) / len(taken) * len(alone) / sum(alone):.2f}x")
        two = _seconds(runs, "jobs", "two workers")
        if two:
            ratio = sum(two) / len(two) * len(alone) / sum(alone)
            record.note(f"Two workers against one: {ratio:.2f}x, bound {NO_WORSE:g}x: {judged(ratio <= NO_WORSE)}.")


def _seconds(runs: Sequence[Run], kind: str, beside: str) -> list[float]:
    """Return the seconds of all runs in a place; a failed one counts as infinitely long."""
    mine = [run for run in runs if (run.kind, run.beside) == (kind, beside)]
    return [float("inf") if run.failed else run.seconds for run in sorted(mine, key=lambda run: run.number)]


def _beside(run: Run) -> Run:
    """Run one training command next to busy processes."""
    with tempfile.TemporaryDirectory(prefix="cold-") as name:
        place = Path(name)
        if run.kind == "fixed":  # reads prepared data; a cold run prepares them, too
            _train(run, place, "--max-steps", "5", *_fixed_plan())
        with neighbours(int(run.beside)):
            return _train(run, place, *(_fixed_plan() if run.kind == "fixed" else ()))


def _fixed_plan() -> tuple[str, ...]:
    """Return the best plan by hand next to neighbours: without its instructions bfloat16 is slower than float32."""
    precision = "bfloat16" if has_bfloat16() else "float32"
    values = ("plan.threads=1", "plan.memory_format=channels_last", f"plan.precision={precision}")
    return ("--no-calibrate", *(word for value in values for word in ("--set", value)))


def _train(run: Run, place: Path, *options: str) -> Run:
    began = time.perf_counter()
    done = subprocess.run(
        [PREFLIGHT, *TRAIN, *options], env=_environment(place), capture_output=True, check=False
    )  # fmt: skip
    seconds, told = time.perf_counter() - began, dict[str, float]()
    for line in (done.stdout + done.stderr).splitlines():
        with suppress(ValidationError):
            found = RECORD.validate_json(line)
            told |= {name: value for name, value in found.items() if isinstance(value, float)}
    return replace(
        run, seconds=seconds, failed=done.returncode != 0, calibration_s=told.get("calibration_s", 0.0),
        train_s=told.get("train_s", 0.0),
    )  # fmt: skip


def _environment(place: Path) -> dict[str, str]:
    directories = {f"PREFLIGHT_{kind}_DIR": str(place / kind.lower()) for kind in ("STATE", "ARTIFACT", "CACHE")}
    return {**os.environ, **directories, "PREFLIGHT_REPORT": "off", "PREFLIGHT_LOG_FORMAT": "json"}


def _jobs(run: Run) -> Run:
    """Have workers, each with its own cache, end all jobs."""
    workers = WORKERS[run.beside]
    with redis_server() as url, tempfile.TemporaryDirectory(prefix="cold-") as name, ExitStack() as stack:
        client = Client(url)
        job = {"type": JOB_TYPE, "dataset": "mnist", "model": "cnn", "epochs": JOB_EPOCHS}
        for number in range(JOBS):
            client.enqueue(TrainJob.model_validate({**job, "job_id": f"job-{number}"}))
        began = time.perf_counter()
        running = [
            stack.enter_context(_worker(url, Path(name) / str(number), each)) for number, each in enumerate(workers)
        ]
        for worker in running:
            worker.wait()
        taken = time.perf_counter() - began
        states = [client.status(f"job-{number}").status for number in range(JOBS)]
    return replace(run, seconds=taken, failed=states != ["finished"] * JOBS)


@contextmanager
def _worker(url: str, place: Path, options: tuple[str, ...]) -> Iterator["subprocess.Popen[bytes]"]:
    place.mkdir()
    with (place / "log").open("wb") as log:
        worker = subprocess.Popen(
            [PREFLIGHT, "worker", "--burst", *options], env={**_environment(place), "REDIS_URL": url},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield worker
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
