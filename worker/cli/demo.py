"""`preflight demo`: one job from start to finish, with a temporary Redis and worker."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click
from pydantic import JsonValue

from preflight import Client
from preflight.cli.exit_codes import INTERRUPTED
from preflight.cli.formatting.events import exit_code
from preflight.cli.watch import show_events
from preflight.errors import DatasetError
from preflight.redis.server.embedded import executable, redis_server
from preflight.wire import JOB_TYPE, AnyEvent, TrainingDone, TrainJob, parse_job
from training.data.prepare import available
from worker.cli.context import require_one_worker
from worker.config.settings import Settings, service_environment
from worker.jobs.local.training import dataset_local

LOCAL: Final = "127.0.0.1"
WORKER_STOP_TIMEOUT: Final = 1.0
"""Seconds for an idle worker to exit; a busy one would finish its job first, and is killed."""
REPORT_SECONDS: Final = 60.0
"""Longest wait for the report, in seconds."""
REPORT_POLL_INTERVAL: Final = 0.1
"""Seconds between two looks for the report."""
DIGITS_JOB: Final[dict[str, JsonValue]] = {"dataset": "digits", "epochs": 8, "batch_size": 32}
"""1,797 images are few, so it takes several epochs to learn them."""


def run_demo(settings: Settings, fields: dict[str, JsonValue]) -> int:
    """Run a job with these fields and return its exit code; stops every process it started.

    Raises:
        NoRedisServer: there is none to start; nothing was downloaded.
    """
    executable()
    try:
        job = _job(settings, fields)
        with redis_server() as url, _services(settings.model_copy(update={"redis_url": url})) as (log, address):
            click.secho(f"redis    {url}\nworker   log in {log}", dim=True)
            click.secho(f"page     {address}", dim=True)
            client = Client(url, queue=settings.queue)
            job_id = client.enqueue(job).job_id
            click.secho(f"enqueued {job_id}", dim=True)
            last = show_events(client, job_id)
            report = _await_report(client, job_id, last)
    except KeyboardInterrupt:
        click.echo("interrupted; all processes of the demo were stopped")
        return INTERRUPTED
    if isinstance(last, TrainingDone):
        _print_result(last, report)
    return exit_code(last)


def _job(settings: Settings, fields: dict[str, JsonValue]) -> TrainJob:
    """Return the demo's job: the given fields, on MNIST if available, else on scikit-learn's digits."""
    default: dict[str, JsonValue] = {"dataset": "mnist", **({} if fields else {"recipe": "fast"})}
    if "dataset" not in fields and not available("mnist", settings.data_dir, settings.cache_dir):
        click.echo(f"mnist is not in {settings.data_dir} yet; trying to download it")
        try:
            dataset_local("mnist", settings)
        except DatasetError as error:
            click.echo(f"{error.message}; the demo uses scikit-learn's 1,797 digits instead")
            default = {"dataset": "digits"} if "recipe" in fields else {**DIGITS_JOB}
    job = parse_job(
        {"type": JOB_TYPE, **default, **fields},
        require_dataset=settings.require_dataset,
    )
    return require_one_worker(job, "demo")


@contextmanager
def _services(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Run a worker and the web service; yield the path of their log, and the address of the page."""
    log = settings.cache_dir / "demo-worker.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    page = ["serve", "--host", LOCAL, "--port", str(port)]
    with log.open("wb") as output, ExitStack() as stack:
        for arguments in (["worker"], *([page] if find_spec("fastapi") else [])):
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "worker.cli", *arguments],
                env=service_environment(settings), stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            stack.callback(_stop, process)
        yield log, f"http://{LOCAL}:{port}" if find_spec("fastapi") else "needs the extra `web`"


def _free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server((LOCAL, 0)) as server:
        return int(server.getsockname()[1])


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop the worker; its supervisor and their children die with it."""
    process.terminate()
    try:
        process.wait(WORKER_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await_report(client: Client, job_id: str, last: AnyEvent | None) -> str | None:
    """Return the path of the report that follows the result; None where there is none in time."""
    deadline = time.monotonic() + REPORT_SECONDS
    if isinstance(last, TrainingDone) and "report" in (last.extras or ""):
        while time.monotonic() < deadline:
            if (report := client.status(job_id).report) is not None:
                return report
            time.sleep(REPORT_POLL_INTERVAL)
    return None


def _command() -> str:
    """Return the command as the user types it here."""
    return "preflight" if shutil.which("preflight") == sys.argv[0] else sys.argv[0]


def _print_result(done: TrainingDone, report: str | None) -> None:
    preflight = _command()
    accuracy = click.style(f"test accuracy {done.test_accuracy:.2%}", bold=True)
    click.echo(
        f"\n{accuracy} after {done.train_s:.1f} s of training ({done.samples_per_s:,.0f} samples/s)\n"
        f"model     {done.artifact}/model.safetensors\n"
        f"manifest  {done.artifact}/manifest.json\n"
        f"report    {report or 'not created'}\n\n"
        "next steps\n"
        f"  {preflight} train --recipe balanced     more accurate, in a minute or two\n"
        f"  {preflight} calibrate --explain         what this machine can do, and why\n"
        f"  {preflight} data add --help             your own pictures"
    )
