"""`preflight calibrate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from preflight.cli.options import JobCommand, job_options
from preflight.errors import InvalidConfig, PreflightError
from worker.cli.context import load_settings, parse_local_job
from worker.cli.live import drawn

if TYPE_CHECKING:
    from worker.config.settings import Settings
    from worker.jobs.hooks import Renderer
    from worker.jobs.local.training import Calibrated


@click.command(cls=JobCommand)
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option("--explain", is_flag=True, help="Print every trial and the reasons for the plan.")
@click.option("--report", type=click.Path(readable=False, path_type=Path), metavar="FILE", help="Also write HTML.")
def calibrate(as_json: bool, explain: bool, report: Path | None, **options: object) -> None:
    """Measure plans for a job here and print the best one."""
    settings = load_settings()
    job = parse_local_job(options, settings)  # report a mistake before the slow imports
    renderer = None if report is None else _check_report(report, settings, calibrates=job.calibrate)
    from worker.jobs.fork_server import started_server

    with started_server(settings) as server:  # it imports torch, and this process the rest, at the same time
        from worker.cli.formatting.choices import choice_as_json, format_choice
        from worker.cli.formatting.explanation import explain_choice
        from worker.jobs.local.training import calibrate_local

        with drawn(settings, as_json=as_json) as sink:
            found = calibrate_local(job, settings, server, sink)
    if as_json:
        click.echo(choice_as_json(found.choice))
    elif explain:
        click.echo(explain_choice(found.choice, found.spec, found.resources))
    else:
        click.echo(format_choice(found.choice))
    if report is not None and renderer is not None:
        _write_report(report, found, renderer)


def _check_report(path: Path, settings: Settings, *, calibrates: bool) -> Renderer:
    """Return the renderer of the report, before anything is measured.

    Raises:
        InvalidConfig, MissingPackage: no report can be written.
    """
    from worker.features.entries import FEATURES

    if not calibrates:
        raise InvalidConfig(
            f"--report {path} needs a measurement, but calibration is off; leave out --no-calibrate", field="report"
        )
    renderer = next((found for feature in FEATURES if (found := feature.renderer(settings)) is not None), None)
    if renderer is None:
        raise InvalidConfig(f"--report {path} is not written, as this worker has no reports", field="report")
    try:
        possible = path.parent.is_dir() and os.access(path.parent, os.W_OK) and not path.is_dir()
    except OSError:  # the name is too long
        possible = False
    if not possible:
        raise InvalidConfig(
            f"--report {path} cannot be written; name a file in an existing, writable directory", field="report"
        )
    return renderer


def _write_report(path: Path, found: Calibrated, renderer: Renderer) -> None:
    from preflight.files.atomic_files import write_atomically
    from worker.jobs.stages.payloads import choice_facts

    finding = found.choice.finding
    if finding is None:
        raise PreflightError(f"--report {path} is not written, as nothing was measured: {found.choice.why}")
    subject = f"{found.spec.model} on {found.spec.dataset}"
    page = renderer(finding, subject, choice_facts(found.choice, found.spec, found.resources))
    try:
        write_atomically(path, page.encode())
    except OSError as error:
        raise InvalidConfig(
            f"--report {path} cannot be written ({error.strerror}); name another file", field="report"
        ) from error
