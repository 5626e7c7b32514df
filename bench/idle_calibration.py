"""What a job pays for a calibration that goes on while the queue is empty: `python -m bench.idle_calibration`.

A real worker with a Redis of its own calibrates `cnn` on the digits, goes on in idle time, and gets a job in the midst
of that, again and again; the same jobs without it are the comparison. Printed are medians and ranges.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from preflight import Client
from preflight.redis.server.embedded import redis_server
from preflight.wire import JOB_TYPE, parse_job
from worker.config.settings import Settings, service_environment

MEASURED_SECONDS = 4.0
"""After the beginning of a search, before a job comes: a child has imported torch and measures."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    rounds = parser.parse_args().rounds
    print("| | median | range |\n|---|---|---|")
    for setting in ("off", "on"):
        with tempfile.TemporaryDirectory() as directory, started(Path(directory), setting) as (client, log, worker):
            run_jobs(client, log, worker, rounds, idle=setting == "on")


@contextmanager
def started(directory: Path, setting: str) -> Iterator[tuple[Client, Path, psutil.Process]]:
    """Start Redis and a worker; yields a client, the worker's log and the worker."""
    log = directory / "log"
    with redis_server() as url, log.open("wb") as output:
        paths = {name: directory / name for name in ("data_dir", "artifact_dir", "cache_dir", "state_dir")}
        settings = Settings.model_validate(
            {"redis_url": url, "idle_calibration": setting, "log_format": "json", "report": "off", **paths}
        )
        command = [sys.executable, "-P", "-m", "worker.cli", "worker"]
        with subprocess.Popen(command, env=service_environment(settings), stdout=output, stderr=output) as process:
            try:
                yield Client(url, queue=settings.queue), log, psutil.Process(process.pid)
            finally:
                process.terminate()


def run_jobs(client: Client, log: Path, worker: psutil.Process, rounds: int, *, idle: bool) -> None:
    """Run the jobs and print what they waited for, and what was ended for them."""
    memory = []
    for number in range(rounds):
        run(client, f"first-{number}", calibrate=True)
        while idle and len(records(log, "idle_calibration_started")) <= number:
            time.sleep(0.1)
        time.sleep(MEASURED_SECONDS)
        parents = [child for child in worker.children() if idle and child.children()]
        memory += [sum(pss(each) for each in (parent, *parent.children(recursive=True))) for parent in parents]
        run(client, f"job-{number}", calibrate=False)
    label = "with" if idle else "without"
    jobs = [record for record in records(log, "job_started") if "job-" in str(record["job_id"])]
    show(f"job waited, {label} idle calibration, s", numbers(jobs, "waited_s"))
    if idle:
        stopped = records(log, "idle_calibration_stopped")
        show(f"end of the idle processes, {len(stopped)} of {rounds} jobs, s", numbers(stopped, "ended_in_s"))
        show("memory of the idle processes, PSS, MiB", memory)


def run(client: Client, job_id: str, *, calibrate: bool) -> None:
    """Run one job to its end."""
    fields: dict[str, object] = {
        "dataset": "digits",
        "model": "cnn",
        "epochs": 1,
        "job_id": job_id,
        "calibrate": calibrate,
    }
    fields |= {"force_calibration": calibrate}
    client.enqueue(parse_job({"type": JOB_TYPE, **fields}))
    for _ in client.events(job_id, timeout=120):
        continue


def records(log: Path, event: str) -> list[dict[str, object]]:
    """Return the records of an event in a log of JSON lines."""
    lines = [line for line in log.read_text().splitlines() if f'"{event}"' in line]
    return [record for line in lines if (record := json.loads(line))["event"] == event]


def numbers(found: Sequence[dict[str, object]], name: str) -> list[float]:
    """Return the numbers under `name`."""
    return [value for record in found if isinstance(value := record.get(name), float)]


def pss(process: psutil.Process) -> float:
    """Return the memory of a process, shared pages divided, in MiB; 0 where it has ended."""
    try:
        return float(process.memory_full_info().pss) / (1 << 20)
    except psutil.NoSuchProcess:
        return 0.0


def show(name: str, values: Sequence[float]) -> None:
    """Print a row."""
    if values:
        print(f"| {name} | {statistics.median(values):.3f} | {min(values):.3f} to {max(values):.3f} |")


if __name__ == "__main__":
    main()
