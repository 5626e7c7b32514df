"""Workers that take jobs from a separate Redis, and the outcome of the jobs."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue, TypeAdapter
from redis import Redis

from preflight import Client
from preflight.redis import keys
from preflight.redis.server.embedded import redis_server
from preflight.wire import JOB_TYPE, AnyEvent, TrainJob, unflatten
from tools.bench.versions import environment

TREE: Final = Path(__file__).parents[3]
JOBS: Final[Mapping[str, Mapping[str, JsonValue]]] = {
    "cnn": {"model": "cnn", "epochs": 2},
    "fast": {"recipe": "fast"},
    "resnet18": {"dataset": "digits", "model": "resnet18", "epochs": 2},
}
"""Jobs of some seconds; on MNIST, a test of `resnet18` alone takes 20."""
RECORDS: Final = TypeAdapter(list[tuple[str, dict[str, str]]])


@dataclass(frozen=True, slots=True)
class Scene:
    """Workers that run."""

    client: Client
    connection: "Redis"
    processes: Sequence["subprocess.Popen[bytes]"]
    log: Path
    began: float


@contextmanager
def workers(count: int, variables: Mapping[str, str], enter: Sequence[str] = ()) -> Iterator[Scene]:
    """Start `count` workers with one empty state directory, in a container behind `enter`."""
    with redis_server() as url, tempfile.TemporaryDirectory(prefix="packing-", ignore_cleanup_errors=True) as place:
        log = Path(place) / "log"
        with log.open("wb") as output:
            processes = [
                subprocess.Popen(
                    [*enter, sys.executable, "-P", "-m", "worker.cli", "worker"], cwd=TREE, stdin=subprocess.DEVNULL,
                    env={**environment(TREE, url, Path(place)), "PREFLIGHT_REPORT": "off", **variables},
                    stdout=output, stderr=output,
                )
                for _ in range(count)
            ]  # fmt: skip
        try:
            yield Scene(Client(url), Redis.from_url(url, decode_responses=True), processes, log, time.monotonic())
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


def enqueue(scene: Scene, fields: Mapping[str, JsonValue]) -> str:
    """Enqueue a job, on MNIST unless `fields` say otherwise, and return its id."""
    return scene.client.enqueue(TrainJob.model_validate({"type": JOB_TYPE, "dataset": "mnist", **fields})).job_id


def ended(scene: Scene, jobs: Sequence[str]) -> float:
    """Wait until all jobs have ended; return the seconds since the workers were started.

    Raises:
        SystemExit: a worker has ended.
    """
    while any(scene.client.is_active(job_id) for job_id in jobs):
        if any(process.poll() is not None for process in scene.processes):
            raise SystemExit(f"a worker has ended:\n{scene.log.read_text()[-2000:]}")
        time.sleep(0.05)
    return time.monotonic() - scene.began


def failures(scene: Scene, jobs: Sequence[str]) -> int:
    """Print the sentence of each job that did not finish; return how many there are."""
    failed = [state for state in map(scene.client.status, jobs) if state.status != "finished"]
    for state in failed:
        print(f"job {state.job_id} {state.status}: {state.message}", flush=True)
    return len(failed)


def events(scene: Scene, job_id: str) -> list[tuple[float, AnyEvent]]:
    """Return a job's events, each with the second at which Redis had it."""
    found = RECORDS.validate_python(scene.connection.xrange(keys.events(job_id)))
    return [(int(at.partition("-")[0]) / 1000, unflatten(fields)) for at, fields in found]
