"""Fixtures that run the real thing: a redis-server, worker processes, a client."""

import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from preflight import Client
from preflight.redis.connection import open_redis
from preflight.redis.server.embedded import redis_server
from preflight.wire import JobState, TrainJob
from tools.faults.machines import RedisServer
from worker.config.settings import Settings, load, service_environment

ROOT = Path(__file__).parents[3]
ENDED = ("finished", "failed", "cancelled")


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A redis-server for the session."""
    with redis_server() as url:
        yield url


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data sets and plans, shared by the session's workers."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def settings(redis_url: str, cache_dir: Path, tmp_path: Path) -> Settings:
    """Settings with an empty Redis and directories of this test."""
    Redis.from_url(redis_url).flushall()
    return load(
        redis_url=redis_url,
        data_dir=tmp_path / "data",
        artifact_dir=tmp_path / "artifacts",
        cache_dir=cache_dir,
        state_dir=tmp_path / "state",
    )


@pytest.fixture
def client(settings: Settings) -> Client:
    """A client of the test's Redis."""
    return Client(settings.redis_url, queue=settings.queue)


@pytest.fixture
def connection(settings: Settings) -> Redis:
    """A plain connection to the test's Redis."""
    return Redis.from_url(settings.redis_url, decode_responses=True)


@pytest.fixture
def raw(settings: Settings) -> Redis:
    """A connection that decodes nothing, as RQ needs it, to an empty Redis."""
    return Redis.from_url(settings.redis_url)


@pytest.fixture
def queue(raw: Redis) -> Queue:
    """The worker's queue, as a producer with RQ has it."""
    return Queue("preflight", connection=raw, serializer=JSONSerializer)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A redis-server for one test, which can be stopped, killed, started again and emptied."""
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.go_on()
    server.kill()


@dataclass(frozen=True, slots=True)
class Worker:
    """A real worker process."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = 90) -> int:
        """Wait for its end and return the exit code."""
        return self.process.wait(seconds)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it with a signal; it must exit with 0."""
        self.process.send_signal(number)
        assert self.wait(30) == 0, self.output()


StartWorker = Callable[..., Worker]
RunWorker = Callable[..., Worker]


@pytest.fixture
def start_worker(settings: Settings, tmp_path: Path) -> Iterator[StartWorker]:
    """Start worker processes; whatever still runs after the test is killed."""
    started: list[Worker] = []

    def start(*options: str, environment: dict[str, str] | None = None, prefix: Sequence[str] = ()) -> Worker:
        log = tmp_path / f"worker-{len(started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-P", "-m", "worker.cli", "worker", *options],
                env={**service_environment(settings), **(environment or {})},
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        started.append(Worker(process, log))
        return started[-1]

    yield start
    for worker in started:
        if worker.process.poll() is None:
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()


@pytest.fixture
def run_worker(start_worker: StartWorker) -> RunWorker:
    """Run a worker until its queue is empty; it must exit with 0."""

    def run(environment: dict[str, str] | None = None) -> Worker:
        worker = start_worker("--burst", environment=environment)
        assert worker.wait() == 0, worker.output()
        return worker

    return run


StartProgram = Callable[..., psutil.Process]


@pytest.fixture
def start_program() -> Iterator[StartProgram]:
    """Start Python programs, each once it has printed `ready`; they and their children are killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: object) -> psutil.Process:
        command = [sys.executable, "-c", program, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return psutil.Process(process.pid)

    yield start
    for process in started:
        with suppress(ProcessLookupError), process:
            os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Wheels:
    """Paths of the project's two wheels."""

    client: Path
    worker: Path


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """The built wheels; nothing is downloaded."""
    directory = tmp_path_factory.mktemp("wheels")
    for project in (ROOT / "client", ROOT):
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
        built = subprocess.run(command, cwd=project, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr
    (client,), (worker,) = (list(directory.glob(f"preflight_{name}-*.whl")) for name in ("client", "worker"))
    return Wheels(client, worker)


def install_into(directory: Path, package: str) -> None:
    """Install a package without its dependencies; skip the test where it cannot be had."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(directory), package]
    installed = subprocess.run(command, capture_output=True, text=True)
    if installed.returncode != 0:
        pytest.skip(f"{package} cannot be installed: {installed.stderr.strip()[-200:]}")


def new_environment(directory: Path, *requirements: str, constrained: bool = True) -> Path:
    """Make a virtual environment with `requirements` and nothing else, and return its Python.

    Versions are those of constraints.txt, or the newest.

    Skips the test where the packages cannot be had, as without a network.
    """
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    constraints = ["-c", str(ROOT / "constraints.txt")] if constrained else []
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    installed = subprocess.run([*command, *constraints, *requirements], capture_output=True, text=True)
    if installed.returncode != 0:
        pytest.skip(f"{requirements} cannot be installed: {installed.stderr.strip()[-200:]}")
    return python


def without_retries(url: str) -> Redis:
    """Return a connection that waits 0.2 s for Redis, once, as a worker's does."""
    return open_redis(url, seconds=0.2, connect_seconds=0.2)


@contextmanager
def out_of_memory(connection: Redis) -> Iterator[None]:
    """Let Redis be full: it refuses every write that needs memory."""
    connection.config_set("maxmemory", 1)
    try:
        yield
    finally:
        connection.config_set("maxmemory", 0)


@contextmanager
def read_only(connection: Redis) -> Iterator[None]:
    """Let Redis be a read-only replica."""
    # Ours would leave a replica before it sent the second command.
    with Redis(unix_socket_path=str(connection.get_connection_kwargs()["path"])) as plain:
        plain.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            yield
        finally:
            plain.execute_command("REPLICAOF", "NO", "ONE")


def digits_job(**fields: object) -> TrainJob:
    """Return a job that trains in about a second; on one thread, because two starve next to other processes.

    `small` is a network of the tests (tests/support/network).
    """
    return TrainJob.model_validate(
        {"type": "preflight.train.v1", "dataset": "digits", "model": "small", "batch_size": 32,
         "calibrate": False, "plan": {"threads": 1}}
        | fields
    )  # fmt: skip


def wait_for(client: Client, job_id: str, *statuses: str, seconds: float = 90) -> JobState:
    """Wait until the job has one of `statuses` (any final one when none is named), while its state changes.

    How long a training takes depends on what else the machine does; one that continues is not stuck.
    """
    state = client.status(job_id)
    changed_at = time.monotonic()
    while state.status not in (statuses or ENDED):
        assert time.monotonic() - changed_at < seconds, f"{job_id} is {state.status}, unchanged for {seconds} s"
        time.sleep(0.05)
        before, state = state, client.status(job_id)
        if state != before:
            changed_at = time.monotonic()
    return state


def wait_until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until `holds` returns True."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.02)
