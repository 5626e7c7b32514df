"""Commands for operators: doctor, health."""

import json
from dataclasses import asdict

import click

from preflight.cli.exit_codes import FAILURE
from worker.cli.context import load_settings


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def doctor(as_json: bool) -> None:
    """Check everything that a job needs. Exit code 1: a check failed."""
    from worker.cli.diagnosis.doctor import run_checks

    failed = False
    for check in run_checks(load_settings()):
        failed |= check.status == "fail"
        click.echo(json.dumps(asdict(check)) if as_json else f"{check.status:4}  {check.name:18}  {check.detail}")
    raise SystemExit(FAILURE if failed else 0)


@click.command()
def health() -> None:
    """Check that this container's service is alive. Exit code 1: it is not."""
    from worker.cli.diagnosis.health import check_health

    click.echo(check_health(load_settings()))
