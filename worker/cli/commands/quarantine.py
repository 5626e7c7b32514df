"""`preflight quarantine`."""

import json

import click

from preflight.cli.arguments import quote
from preflight.errors import InvalidConfig
from worker.cli.context import load_settings


@click.group()
def quarantine() -> None:
    """List or drop queue entries that cannot be run as jobs."""


@quarantine.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def quarantine_list(as_json: bool) -> None:
    """List the quarantined entries, oldest first."""
    from preflight.cli.formatting.text import printable
    from preflight.redis.connection import PATIENCE, open_redis
    from worker.admission.quarantine import entries

    for name, entry in entries(open_redis(load_settings().redis_url, retries=PATIENCE)).items():
        if as_json:
            click.echo(json.dumps({"id": name, **entry.model_dump()}))
        else:
            click.echo(f"{printable(name)}  {printable(entry.queue)}  {printable(entry.reason)}")


@quarantine.command("drop")
@click.argument("names", metavar="ID...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Drop every entry.")
def quarantine_drop(names: tuple[str, ...], everything: bool) -> None:
    """Delete quarantined entries and their jobs; ID as `list` prints it."""
    from preflight.redis.connection import PATIENCE, open_redis
    from worker.admission.quarantine import drop, drop_all

    if bool(names) == everything:
        raise InvalidConfig("quarantine drop needs either ids or --all; `preflight quarantine list` lists the ids")
    connection = open_redis(load_settings().redis_url, retries=PATIENCE)
    if everything:
        click.echo(f"{drop_all(connection)} dropped")
        return
    # `list` prints ASCII only; another name may not even be UTF-8.
    unknown = [name for name in names if not (name.isascii() and drop(connection, name))]
    dropped = len(names) - len(unknown)
    if unknown:
        verb, result = "is" if len(unknown) == 1 else "are", f"{dropped} dropped" if dropped else "nothing was dropped"
        raise InvalidConfig(f"{', '.join(map(quote, unknown))} {verb} not in quarantine; {result}")
    click.echo(f"{dropped} dropped")
