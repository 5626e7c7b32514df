"""`preflight models`: aliases of trained models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from preflight.errors import ArtifactError
from worker.cli.context import load_settings

if TYPE_CHECKING:
    from worker.models.store import Author, ModelStore

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
by_option = click.option("--by", metavar="NAME", help="Who does it; default: the user and the host.")
why_option = click.option("--why", metavar="TEXT", default="", help="A reason, for the history.")
expect_option = click.option(
    "--expect", type=click.IntRange(0), metavar="N",
    help="Refuse unless promotion N is in effect; 0: unless the alias is new.",
)  # fmt: skip


@click.group()
def models() -> None:
    """Give trained models names, swap and roll them back."""


@models.command("list")
@as_json_option
def list_(as_json: bool) -> None:
    """List the aliases and the models in use."""
    from worker.cli.formatting.models import as_row, format_aliases
    from worker.models.records import UnknownAlias

    store = _store()
    found, damaged = [], []
    for name in store.names():
        try:
            found.append(store.alias(name))
        except UnknownAlias:  # somebody has removed it meanwhile
            continue
        except ArtifactError as error:
            damaged.append((name, error.message))
    if as_json:
        for alias in found:
            click.echo(json.dumps(as_row(alias)))
    elif found or not damaged:
        click.echo(format_aliases(found))
    for _, message in damaged:
        click.echo(f"preflight: {message}", err=True)
    raise SystemExit(1 if damaged else 0)


@models.command("show")
@click.argument("alias")
@as_json_option
def show(alias: str, as_json: bool) -> None:
    """Show an alias with its history; its files are compared with their hashes."""
    from worker.cli.formatting.models import as_object, format_alias

    store = _store()
    store.resolve(alias)
    found = store.alias(alias.partition("@")[0])
    click.echo(json.dumps(as_object(found, store)) if as_json else format_alias(found, store))


@models.command("promote")
@click.argument("job", metavar="JOB|DIR")
@click.option("--as", "alias", required=True, metavar="ALIAS", help="The name, such as production.")
@why_option
@by_option
@expect_option
@as_json_option
def promote(job: str, alias: str, why: str, by: str | None, expect: int | None, as_json: bool) -> None:
    """Have ALIAS stand for the model of a finished job."""
    from worker.cli.formatting.models import as_object, format_current
    from worker.models.promoting import promote_artifact, require_artifact

    settings, store = load_settings(), _store()
    found = promote_artifact(
        store, alias, require_artifact(settings.artifact_dir, job), _author(by, why), expected=expect
    )
    click.echo(json.dumps(as_object(found, store)) if as_json else format_current(found))


@models.command("rollback")
@click.argument("alias")
@why_option
@by_option
@expect_option
@as_json_option
def rollback(alias: str, why: str, by: str | None, expect: int | None, as_json: bool) -> None:
    """Have ALIAS stand for the model before the one in use."""
    from worker.cli.formatting.models import as_object, format_current

    store = _store()
    found = store.rollback(alias, _author(by, why), expected=expect)
    click.echo(json.dumps(as_object(found, store)) if as_json else format_current(found))


@models.command("remove")
@click.argument("alias", metavar="ALIAS[@HASH]")
@as_json_option
def remove(alias: str, as_json: bool) -> None:
    """Remove an alias with its history, or the files of one earlier model."""
    _store().remove(alias)
    click.echo(json.dumps({"removed": alias}) if as_json else f"removed {alias}")


def _store() -> ModelStore:
    from worker.models.store import open_store

    return open_store(load_settings())


def _author(by: str | None, why: str) -> Author:
    from worker.models.store import Author, this_user

    by, why = ((text.encode(errors="replace").decode()) for text in (by or this_user(), why))  # argv may be no UTF-8
    return Author(by=by[:200], why=why[:1000])
