"""The cores of a container shared out between processes and threads: `python -m bench.processes [CORES ...]`.

Each is a training by `preflight train` on so many processors (taskset), round by round: one process with all threads,
then several that share them. What calibration chooses by itself is a row, too. `shapes-net` is the network of
deploy/examples/own_task, without batch norms; in `cnn`, which has some, only a job that names its processes takes them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from pydantic import JsonValue, TypeAdapter

from bench.calibration.common import PREFLIGHT
from bench.calibration.matrix.workloads import python_path
from bench.record import Record, samples, start
from worker.config.settings import load, service_environment

TRAININGS: Final = (("shapes", "shapes-net", 128), ("shapes", "shapes-net", 1024), ("mnist-short", "cnn", 1024))
"""Data set, model and batch size."""
SECONDS: Final = 4.0
"""That a training should take, by a first short one."""
FIRST_SAMPLES: Final = 20_000
EVENT: Final = TypeAdapter(dict[str, JsonValue])
PLAN: Final = ("precision=bfloat16", "memory_format=channels_last")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A training as its log tells it."""

    samples_per_s: float
    processes: int
    threads: int


def main() -> None:
    """Measure on the numbers of cores that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench.processes")
    most = len(os.sched_getaffinity(0))
    parser.add_argument("cores", nargs="*", type=int, default=[most], help="processors; all that there are by default")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    if not all(1 <= cores <= most for cores in asked.cores):
        parser.error(f"there are {most} processors here, not {max(asked.cores)}")
    record = start("processes", f"python -m bench.processes {' '.join(map(str, asked.cores))}", "imports, calibration")
    with tempfile.TemporaryDirectory(prefix="bench-processes-") as place:
        environment = prepared_environment(Path(place))
        for cores in asked.cores:
            record.head(f"{cores} processors", "plan", "samples/s", "beside one process")
            for training in TRAININGS:
                measure(record, cores, training, asked.rounds, environment)
    record.note(f"Load of the machine at the end: {os.getloadavg()[0]:.1f}.")
    record.write()


def measure(
    record: Record, cores: int, training: tuple[str, str, int], rounds: int, environment: Mapping[str, str]
) -> None:  # fmt: skip
    """Add the rows of one training on so many cores."""
    first = train(cores, training, FIRST_SAMPLES, own(1, cores), environment)
    count = max(FIRST_SAMPLES, round(first.samples_per_s * SECONDS))
    found: dict[str, list[Done]] = {}
    for number in range(rounds):
        ways = {f"{each} x {cores // each}": own(each, cores // each) for each in splits(cores)}
        ways |= {"as calibrated": ["--calibrate"]}
        for name, arguments in reversed(ways.items()) if number % 2 else ways.items():
            found.setdefault(name, []).append(train(cores, training, count, arguments, environment))
    alone = [done.samples_per_s for done in found[f"1 x {cores}"]]
    for name in [*ways]:
        rates = [done.samples_per_s for done in found[name]]
        chosen = sorted({f"{done.processes} x {done.threads}" for done in found[name]})
        record.row(
            f"`{training[1]}`, batch {training[2]}", name if name[0].isdigit() else f"{name}: {', '.join(chosen)}",
            samples(rates, ",.0f"), samples([rate / median(alone) for rate in rates], ".2f"),
        )  # fmt: skip


def splits(cores: int) -> Iterator[int]:
    """Yield the numbers of processes: powers of two."""
    count = 1
    while count <= cores:
        yield count
        count *= 2


def own(processes: int, threads: int) -> Sequence[str]:
    """Return the arguments of a plan of one's own."""
    fields = [f"processes={processes}", f"threads={threads}", *PLAN]
    return ["--no-calibrate", *(part for field in fields for part in ("--set", f"plan.{field}"))]


def prepared_environment(place: Path) -> Mapping[str, str]:
    """Return the environment of all trainings, with their data sets prepared."""
    own = {
        "PREFLIGHT_CACHE_DIR": str(place / "cache"), "PREFLIGHT_ARTIFACT_DIR": str(place / "artifacts"),
        "PREFLIGHT_STATE_DIR": str(place / "state"), "PYTHONPATH": python_path(place / "site"),
    }  # fmt: skip
    environment = {**service_environment(load(log_format="json", log_level="info", report="off")), **own}
    for dataset in {training[0] for training in TRAININGS}:
        command = [sys.executable, "-m", "bench.calibration.matrix.workloads", dataset, own["PREFLIGHT_CACHE_DIR"]]
        subprocess.run(command, env=environment, check=True)
    return environment


def train(
    cores: int, training: tuple[str, str, int], count: int, arguments: Sequence[str], environment: Mapping[str, str]
) -> Done:  # fmt: skip
    """Train one epoch of `count` samples on processors 0 to `cores` - 1."""
    dataset, model, batch_size = training
    command = [
        "taskset", "--cpu-list", f"0-{cores - 1}", PREFLIGHT, "train", "--dataset", dataset, "--model", model,
        "--batch-size", str(batch_size), "--epochs", "1", "--epoch-samples", str(count), "--json",
        "--set", "validation_samples=100", *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.decode()[-2000:]}")
    log = [EVENT.validate_json(line) for line in done.stderr.splitlines() if line.startswith(b"{")]
    events = {str(record["event"]): record for record in log}
    plan, epoch = events["calibration_winner"], events["epoch_done"]
    rate, processes, threads = epoch["samples_per_s"], plan["processes"], plan["threads"]
    assert isinstance(rate, int | float) and isinstance(processes, int) and isinstance(threads, int)  # noqa: S101 - our own log
    return Done(samples_per_s=float(rate), processes=processes, threads=threads)


if __name__ == "__main__":
    main()
