"""Settings and logging of a command, imported when it runs, and the check of a job that has no queue."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from preflight.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.wire import TrainJob
    from worker.config.settings import Settings


def load_settings() -> Settings:
    """Read the settings from the environment; raises `InvalidConfig`."""
    from worker.config.settings import load

    return load()


def parse_local_job(
    options: dict[str, object], settings: Settings, has_begun: Callable[[TrainJob], bool] = lambda _job: False
) -> TrainJob:
    """Return the job that the options describe, on a data set that is registered or was imported here.

    Raises:
        InvalidConfig: it cannot be carried out here.
    """
    from preflight.cli.arguments import parse_job_options

    return parse_job_options(options, has_begun, settings.require_dataset)


def log_to_stderr(settings: Settings) -> None:
    """Send log records to stderr; stdout is for results."""
    from worker.events.logging import configure

    configure(settings.log_format, settings.log_level, sys.stderr, settings.secrets)


def require_one_worker(job: TrainJob, command: str) -> TrainJob:
    """Return the job, for a command that trains in this container alone; say so where it may have a group.

    Raises:
        InvalidConfig: it needs several workers.
    """
    alone, group = f"`preflight {command}` trains in this container alone", job.group
    if group.min > 1:
        raise InvalidConfig(
            f"workers is at least {group.min}, but {alone}; leave workers out, or enqueue the job", field="workers"
        )
    if group.max > 1:
        click.echo(f"{alone}, not with up to {group.max} workers", err=True)
    return job
