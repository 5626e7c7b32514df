"""How soon the workers of a group train together, and where the seconds go: real idle workers, one Redis, one machine.

    PYTHONPATH=tests python -m bench.group_forming [--rounds N]

Each worker keeps torch imported from the first job on. A job is enqueued while all are idle; its events and the
workers' logs tell when it was taken, when its seats were offered, when the last member sat down, and when the
processes were connected.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from redis import Redis
from support.worker.services import digits_job

from bench.record import Record, judged, samples, start
from preflight import Client
from preflight.redis import keys
from preflight.redis.server.embedded import redis_server
from preflight.wire import GroupFormed, JobStarted
from worker.config.settings import Settings, service_environment

SIZES: Final = (2, 3)
BOUND: Final = 3.0
"""Seconds from the offer of seats until the processes are connected."""
READY_SECONDS: Final = 60.0
ENVIRONMENT: Final = {"PREFLIGHT_GROUP": "on", "PREFLIGHT_LOG_FORMAT": "json"}
PARTS: Final = ("until the seats are offered", "until the last member sits", "until they are connected")


@dataclass(frozen=True, slots=True)
class Forming:
    """One group, in seconds."""

    offered: float
    """Since the job was taken."""
    seated: float
    """Since then."""
    connected: float
    """Since then."""

    @property
    def total(self) -> float:
        """From the offer on: what comes before is the job's own preparation."""
        return self.seated + self.connected


@dataclass(frozen=True, slots=True)
class Workers:
    """Running workers."""

    client: Client
    connection: Redis
    logs: Sequence[Path]
    environment: dict[str, str]

    def await_idle(self, count: int) -> None:
        """Wait until `count` workers may sit down."""
        deadline = time.monotonic() + READY_SECONDS
        self.connection.delete(keys.idle_workers("preflight"))
        while self.connection.zcard(keys.idle_workers("preflight")) < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"{count} workers were not idle within {READY_SECONDS:g} s")
            time.sleep(0.1)

    def last_seat(self, job_id: str) -> float:
        """Return when the last member of a job sat down, in seconds of the epoch."""
        lines = [json.loads(line) for log in self.logs for line in log.read_text().splitlines() if "seat_taken" in line]
        return max(seconds(line["ts"]) for line in lines if line.get("job_id") == job_id)


def seconds(stamp: str) -> float:
    """Return an ISO time as seconds of the epoch."""
    return datetime.fromisoformat(stamp).timestamp()


@contextmanager
def workers(count: int) -> Iterator[Workers]:
    """Run `count` workers on a Redis of their own."""
    with redis_server() as url, tempfile.TemporaryDirectory() as directory:
        place, started = Path(directory), list[subprocess.Popen[bytes]]()
        settings = Settings(
            redis_url=url, data_dir=place / "data", artifact_dir=place / "artifacts", cache_dir=place / "cache",
            state_dir=place / "state",
        )  # fmt: skip
        environment = {**service_environment(settings), **ENVIRONMENT, "PREFLIGHT_REPORT": "off"}
        logs = [place / f"{number}.log" for number in range(count)]
        try:
            for log in logs:
                with log.open("wb") as output:
                    started.append(subprocess.Popen(
                        [sys.executable, "-P", "-m", "worker.cli", "worker"], env=environment, stdout=output,
                        stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
                    ))  # fmt: skip
            yield Workers(Client(url), Redis.from_url(url, decode_responses=True), logs, environment)
        finally:
            for process in started:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def form(running: Workers, job_id: str, count: int) -> Forming:
    """Have idle workers train one job, and return how long they took to come together."""
    running.await_idle(count)
    running.client.enqueue(
        digits_job(job_id=job_id, workers={"min": 1, "max": count}, batch_size=1350, epochs=3, deterministic=False)
    )
    taken = formed = offered = 0.0
    for event in running.client.events(job_id, timeout=READY_SECONDS):
        if isinstance(event, JobStarted):
            taken = event.ts
        elif isinstance(event, GroupFormed):
            formed, offered = event.ts, event.ts - event.seconds
            if event.workers != count:
                raise SystemExit(f"{event.workers} of {count} workers have formed the group")
    if not formed:
        raise SystemExit(f"no group has formed for {job_id}")
    seated = running.last_seat(job_id)
    return Forming(offered - taken, seated - offered, formed - seated)


def measure(rounds: int, record: Record) -> None:
    """Form groups of each size, and print the parts."""
    record.head("group of", *PARTS, "from the offer on", "bound", "")
    for count in SIZES:
        with workers(count) as running:
            form(running, "first", count)  # imports of torch, data, page cache
            found = [form(running, f"job-{number}", count) for number in range(rounds)]
        parts = ([each.offered for each in found], [each.seated for each in found], [each.connected for each in found])
        totals = [each.total for each in found]
        record.row(
            str(count), *(samples(part, ".2f", " s") for part in parts), samples(totals, ".2f", " s"), f"{BOUND:g} s",
            judged(max(totals) <= BOUND),
        )  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m bench.group_forming", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    rounds: int = parser.parse_args(arguments).rounds
    record = start("group-forming", f"PYTHONPATH=tests python -m bench.group_forming --rounds {rounds}", "the network")
    measure(rounds, record)
    record.write()


if __name__ == "__main__":
    main(sys.argv[1:])
