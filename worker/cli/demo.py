"""`preflight demo`: one job from end to end, with a Redis and a worker of its own."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import JsonValue
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from training.data.prepare import available
from training.errors import DatasetError
from worker.broker.embedded_redis import redis_server
from worker.cli.formatting.choices import describe, outcome
from worker.client import Client
from worker.config.settings import Settings, service_environment
from worker.jobs.local.training import dataset_here
from worker.wire import JOB_TYPE, AnyEvent, TrainingDone, TrainJob, parse_job
from worker.wire import Progress as ProgressEvent

WORKER_GRACE: Final = 1.0
"""Seconds that an idle worker gets to sign off; a busy one would finish its job first, and is killed."""
DIGITS_JOB: Final[dict[str, JsonValue]] = {"dataset": "digits", "epochs": 8, "batch_size": 32}
"""1,797 images are gone through in a moment, so it takes some epochs to learn them."""


def run_demo(settings: Settings, asked: dict[str, JsonValue]) -> int:
    """Run the demo on a job with the fields `asked` for, and return the exit code of that job.

    Leaves nothing running, whatever happens.
    """
    console = Console(highlight=False)
    try:
        job = _job(settings, console, asked)
        with redis_server() as url, _worker(settings.model_copy(update={"redis_url": url})) as log:
            console.print(f"[dim]redis    {url}\nworker   log in {log}[/dim]")
            client = Client(url, queue=settings.queue)
            job_id = client.enqueue(job).job_id
            console.print(f"[dim]enqueued {job_id}[/dim]")
            last = _show(client, job_id, console)
    except KeyboardInterrupt:
        console.print("interrupted; every process of the demo has been ended")
        return 130
    if isinstance(last, TrainingDone):
        _farewell(last, console)
    return outcome(last)


def _job(settings: Settings, console: Console, asked: dict[str, JsonValue]) -> TrainJob:
    """Return the demo's job: what was asked for, on MNIST where it can be had, else on scikit-learn's digits."""
    fields: dict[str, JsonValue] = {"dataset": "mnist"}
    if "dataset" not in asked and not available("mnist", settings.data_dir, settings.cache_dir):
        console.print(f"mnist is not in {settings.data_dir} yet; trying to download it", soft_wrap=True)
        try:
            dataset_here("mnist", settings)
        except DatasetError as error:
            console.print(f"{error.message}; the demo goes on with scikit-learn's 1,797 digits", soft_wrap=True)
            fields = {"dataset": "digits"} if "recipe" in asked else {**DIGITS_JOB}
    return parse_job({"type": JOB_TYPE, **fields, **asked})


@contextmanager
def _worker(settings: Settings) -> Iterator[Path]:
    """Run a worker process; yields the path of its log."""
    log = settings.cache_dir / "demo-worker.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.cli", "worker"],
            env=service_environment(settings), stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield log
    finally:
        _stop(process)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the worker. Its supervisor and their children die with it."""
    process.terminate()
    try:
        process.wait(WORKER_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _show(client: Client, job_id: str, console: Console) -> AnyEvent | None:
    """Show a job's events as they come, with a bar for the training; return the last one."""
    bar = Progress(TextColumn("training"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), console=console)
    task = bar.add_task("training", total=None, visible=False)
    figures = Text()
    last = None
    with Live(Group(bar, figures), console=console, refresh_per_second=8, transient=True) as live:
        for last in client.events(job_id):
            line = describe(last)
            if isinstance(last, ProgressEvent):
                done = (last.epoch - 1) * last.steps + last.step
                bar.update(task, total=last.epochs * last.steps, completed=done, visible=True)
                figures.plain = line or ""
            elif line:
                live.console.print(line, markup=False, soft_wrap=True)
    return last


def _farewell(done: TrainingDone, console: Console) -> None:
    preflight = "preflight" if shutil.which("preflight") == sys.argv[0] else sys.argv[0]  # as it has to be typed here
    console.print(
        f"\n[bold]test accuracy {done.test_accuracy:.2%}[/bold] after {done.train_seconds:.1f} s of training "
        f"({done.samples_per_s:,.0f} samples/s)\n"
        f"model     {done.artifact}/model.safetensors\n"
        f"manifest  {done.artifact}/manifest.json\n"
        f"report    {done.report or 'none was made'}\n\n"
        "what to type next\n"
        f"  {preflight} train --epochs 3 --set augmentation.rotate_degrees=10\n"
        f"  {preflight} calibrate --model resnet18\n"
        f"  {preflight} doctor\n"
        f"  REDIS_URL=redis://... {preflight} worker",
        markup=True, soft_wrap=True,
    )  # fmt: skip
