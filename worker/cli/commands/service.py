"""`preflight worker` and `preflight serve`."""

import sys
from typing import Final, Literal

import click

from worker.cli.context import load_settings

MOST_PROCESSES: Final = 1024


def _processes(context: click.Context, option: click.Parameter, value: str | None) -> int | Literal["auto"] | None:
    """Return the value of `--processes`; raises `click.BadParameter`."""
    if value is None:
        return None
    if value == "auto":
        return "auto"
    number = int(value) if value.isdecimal() and value.isascii() else 0
    if not 1 <= number <= MOST_PROCESSES:
        raise click.BadParameter(f"{value!r} is neither auto nor a number from 1 to {MOST_PROCESSES}", context, option)
    return number


@click.command()
@click.option("--burst", is_flag=True, help="Exit when the queue is empty.")
@click.option("--processes", callback=_processes, metavar="auto|N",
              help="auto: one job on all cores, several at a time where that does more. "
                   "N: so many workers, each with an equal share of the cores and the memory.")  # fmt: skip
@click.option("--max-jobs", type=click.IntRange(1, 1024), metavar="N",
              help="With --processes auto, run at most N jobs at a time.")  # fmt: skip
@click.option("--with-scheduler/--without-scheduler", default=True, show_default=True,
              help="Enqueue scheduled jobs of the queue, unless another worker does.")  # fmt: skip
def worker(burst: bool, processes: int | Literal["auto"] | None, max_jobs: int | None, with_scheduler: bool) -> None:
    """Run jobs from the queue."""
    settings = load_settings()  # report a mistake before the slow imports
    given = {"processes": processes, "max_jobs": max_jobs}
    settings = settings.model_copy(update={name: value for name, value in given.items() if value is not None})
    from worker.queue.service import serve

    serve(settings, burst=burst, with_scheduler=with_scheduler)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; '::' for all.")
@click.option("--port", type=click.IntRange(1, 65_535), help="Port to listen on; default: PORT, or 8000.")
def serve(host: str, port: int | None) -> None:
    """Serve the page, jobs, events and metrics over HTTP."""
    from training.system.requirements import require_packages
    from worker.events.logging import configure

    settings = load_settings()
    require_packages(("fastapi", "httptools", "uvicorn", "prometheus_client"), "the web service needs it", "web")
    configure(settings.log_format, settings.log_level, sys.stdout, settings.secrets)
    from worker.web.server import serve as serve_http

    serve_http(settings, host, port)
