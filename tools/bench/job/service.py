"""A real worker of a checkout, with a separate Redis and empty directories, and jobs that a client gives it."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter
from redis import Redis

from preflight import Client
from preflight.redis import keys
from preflight.redis.server.embedded import redis_server
from preflight.wire import JOB_TYPE, TrainJob, TrainResult
from tools.bench.job.timeline import MeasuredJob, Record, stages_of
from tools.bench.versions import environment

POLL_SECONDS: Final = 0.01
"""Seconds between two looks of the waiting client for the result."""
POLLS_PER_STATUS: Final = 100
AFTERWARDS_TIMEOUT: Final = 60.0
"""Seconds after a result within which the job must end in RQ, and the report must come."""
RECORDS: Final = TypeAdapter(list[tuple[str, Record]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A running worker."""

    process: "subprocess.Popen[bytes]"
    client: Client
    redis: Redis
    log: Path

    def run(self, **fields: object) -> MeasuredJob:
        """Enqueue a job of MNIST, and wait for the result, its end in RQ and its report; exit where the job fails."""
        job = TrainJob.model_validate({"type": JOB_TYPE, "dataset": "mnist", **fields})
        began, enqueued_at = time.perf_counter(), time.time()
        job_id = self.client.enqueue(job).job_id
        result = self._await_result(job_id)
        had = time.perf_counter()
        self._await(lambda: not self.client.is_active(job_id), "end of the job in RQ")
        recorded = time.perf_counter() - had
        self._await(lambda: self._is_reported(job_id), "report")
        events = self._events(job_id)
        return MeasuredJob(
            enqueued_at=enqueued_at, wall=had - began, recorded=recorded, result=result, events=events,
            stages=stages_of(enqueued_at, had - began, events),
        )  # fmt: skip

    def calibrate(self, model: str) -> float:
        """Return the wall seconds of a calibration that finds nothing in the cache; the training is cancelled."""
        job = TrainJob.model_validate(
            {"type": JOB_TYPE, "dataset": "mnist", "model": model, "force_calibration": True, "epochs": 1}
        )
        job_id, times = self.client.enqueue(job).job_id, dict[str, float]()
        for event in self.client.events(job_id):
            times[event.type] = event.ts
            if event.type == "calibration_winner":
                self.client.cancel(job_id)
        if "job_cancelled" not in times:
            raise SystemExit(f"the calibration of {model} was to be cancelled at its end, but it was not: {times}")
        return times["calibration_winner"] - times["dataset_ready"]

    def _await_result(self, job_id: str) -> TrainResult:
        polls = 0
        while (result := self.client.result(job_id)) is None:
            polls += 1
            if polls % POLLS_PER_STATUS == 0:
                self.require_success(job_id)
            time.sleep(POLL_SECONDS)
        return result

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds after a result."""
        deadline = time.monotonic() + AFTERWARDS_TIMEOUT
        while not holds():
            if time.monotonic() > deadline:
                raise SystemExit(f"no {what} within {AFTERWARDS_TIMEOUT:g} s of the result; {self._last_lines()}")
            time.sleep(POLL_SECONDS)

    def _is_reported(self, job_id: str) -> bool:
        """Whether the report is there, or none is to follow: up to 0.16.0 it was made before the result."""
        told = {event["type"]: event for event in self._events(job_id)}
        return "report" not in told["training_done"].get("extras", "").split() or "report_ready" in told

    def _events(self, job_id: str) -> Sequence[Record]:
        return [event for _, event in RECORDS.validate_python(self.redis.xrange(keys.events(job_id)))]

    def require_success(self, job_id: str) -> None:
        """Exit where the job has failed or the worker has ended."""
        status = self.client.status(job_id).status
        if status in ("failed", "cancelled") or self.process.poll() is not None:
            raise SystemExit(f"the job is {status}; {self._last_lines()}")

    def _last_lines(self) -> str:
        return "the worker's last lines:\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])


@contextmanager
def running_worker(tree: Path, python: Path = Path(sys.executable), **variables: str) -> Iterator[Service]:
    """Run a worker of the checkout `tree` with environment `variables`; yields it once it listens."""
    with redis_server() as url, tempfile.TemporaryDirectory(prefix="job-", ignore_cleanup_errors=True) as scratch:
        directory, redis = Path(scratch), Redis.from_url(url, decode_responses=True)
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [str(python.absolute()), "-P", "-m", "worker.cli", "worker"],
                cwd=tree,
                env={**environment(tree, url, directory), **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        service = Service(process=process, client=Client(url), redis=redis, log=directory / "log")
        try:
            while not redis.smembers("rq:workers"):
                service.require_success("none")
                time.sleep(POLL_SECONDS)
            yield service
        finally:
            process.terminate()
            process.wait()
