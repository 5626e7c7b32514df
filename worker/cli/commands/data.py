"""`preflight data`: your own pictures as data sets with versions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from preflight.cli.options import UncheckedPath
from preflight.errors import DatasetError, InvalidConfig
from worker.cli.context import load_settings, log_to_stderr

if TYPE_CHECKING:
    from pydantic import JsonValue

    from training.catalog.version import Version
    from training.importing.run import Progress

PROGRESS_SECONDS: Final = 0.5
"""Seconds between two lines of progress."""

MAX_CHANGES: Final = 16 << 20
"""Most characters of a file of changes."""

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def data() -> None:
    """Import your own pictures as data sets with versions."""


@data.command("add")
@click.argument("name")
@click.argument("source", type=UncheckedPath())
@click.option("--size", metavar="N|HxW", help="Height and width; default: the most frequent size up to 64.")
@click.option("--channels", type=click.Choice(("auto", "gray", "rgb")), default="auto", show_default=True)
@click.option("--ink", type=click.Choice(("auto", "dark", "light")), default="auto", show_default=True,
              help="dark: dark ink on light paper, which is inverted, so that 0 is background.")  # fmt: skip
@click.option("--test", default="0.2", metavar="SHARE", show_default=True, help="Share held out for the test.")
@click.option(
    "--validation", default="0.1", metavar="SHARE", show_default=True, help="Share of the rest that validates."
)
@click.option("--group", metavar="COLUMN", help="Samples of one value stay on one side of the split.")
@click.option(
    "--format", "format_", metavar="FORMAT", help="tree, labels, pixels, arrays, parquet or idx; default: found."
)
@click.option("--max-refused", default="1%", metavar="SHARE", show_default=True,
              help="Refused samples above which the import ends.")  # fmt: skip
@click.option("--keep-duplicates", is_flag=True, help="Keep training samples that are also in the test set.")
@as_json_option
def add(name: str, source: str, as_json: bool, **asked: object) -> None:
    """Import SOURCE as the next version of NAME.

    SOURCE is a folder of class folders, a table, an array file, a Parquet file, an archive of these, or a URL: see
    docs/how-to/data.md. Exit code 0: the version is ready. 2: it was refused, and nothing is left behind. After a kill
    the same command resumes where it was.
    """
    from training.system.requirements import require_packages
    from worker.jobs.local.import_options import import_options

    settings, options = load_settings(), import_options(asked, "--")
    require_packages(("numpy", "PIL"), "imports need it", "train")
    from worker.cli.formatting.datasets import format_version
    from worker.jobs.local.importing import Asked, import_local

    try:
        version, is_new = import_local(Asked(name, source, options), settings, _teller(as_json))
    except KeyboardInterrupt:
        click.echo("the same command resumes the import", err=True)
        raise
    except DatasetError as error:
        raise InvalidConfig(error.message, field=error.field) from error
    if as_json:
        click.echo(json.dumps({**_as_json(version), "new": is_new}))
        return
    click.echo(format_version(version))
    if not is_new:
        click.echo(f"{version.reference} has this content already; no version was added")


@data.command("list")
@as_json_option
def list_(as_json: bool) -> None:
    """List the imported data sets."""
    from training.catalog.catalog import Catalog
    from worker.cli.formatting.datasets import format_list

    catalog = Catalog(load_settings().data_dir)
    versions, aliases = catalog.versions(), catalog.aliases()
    if as_json:
        for version in versions:
            named = [alias for alias, reference in aliases.items() if reference in (version.reference, version.name)]
            click.echo(json.dumps({**_as_json(version), "aliases": named}))
    else:
        click.echo(format_list(versions, aliases))


@data.command("show")
@click.argument("dataset", metavar="NAME[@N]")
@as_json_option
def show(dataset: str, as_json: bool) -> None:
    """Show what was imported, and what is wrong with it."""
    from training.catalog.catalog import Catalog
    from worker.cli.formatting.datasets import format_version

    version = Catalog(load_settings().data_dir).find(dataset)
    click.echo(json.dumps(_as_json(version)) if as_json else format_version(version))


@data.command("diff")
@click.argument("before", metavar="NAME@N")
@click.argument("after", metavar="NAME[@N]")
@as_json_option
def diff(before: str, after: str, as_json: bool) -> None:
    """Show what changed from one version to another."""
    from training.catalog.catalog import Catalog
    from training.importing.difference import compare
    from worker.cli.formatting.datasets import format_difference

    catalog = Catalog(load_settings().data_dir)
    found = compare(catalog, catalog.find(before), catalog.find(after))
    click.echo(json.dumps(found) if as_json else format_difference(found))


@data.command("issues")
@click.argument("dataset", metavar="NAME[@N]")
@click.option("--folds", type=click.IntRange(2, 10), default=2, show_default=True,
              help="Trainings, each without a part of the samples, which it then judges.")  # fmt: skip
@click.option("--most", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="Samples to list.")
@as_json_option
def issues(dataset: str, folds: int, most: int, as_json: bool) -> None:
    """List the samples whose labels look wrong, the most suspicious first.

    It trains a small network on the other samples, and says on stderr how long that will take; Ctrl-C ends it. The
    first two columns of what is printed are what `preflight data relabel` takes.
    """
    from preflight.cli.formatting.text import printable
    from worker.jobs.local.issues import Search, issues_local

    told = False

    def tell(progress: Progress) -> None:
        nonlocal told
        if not told and progress.seconds_left is not None:
            click.echo(f"takes some {progress.seconds_left:,.0f} s", err=True)
        told = True

    settings = load_settings()
    log_to_stderr(settings)
    found = issues_local(Search(dataset, folds, most), settings, tell)
    if as_json:
        click.echo(found.model_dump_json())
        return
    click.echo(f"{found.estimated:,} of {found.samples:,} labels look wrong", err=True)
    for each in found.issues:
        row = (str(each.sample), printable(each.suggested), printable(each.given), f"{each.own:.4f}")
        click.echo(",".join(f'"{text}"' if "," in text else text for text in row))


@data.command("relabel")
@click.argument("dataset", metavar="NAME[@N]")
@click.argument("changes", type=UncheckedPath())
@click.option("--by", metavar="WHO", default=None, help="Who changes it, for its history; default: this user.")
@as_json_option
def relabel(dataset: str, changes: str, by: str | None, as_json: bool) -> None:
    """Move samples to another class, or leave them out, as the next version.

    CHANGES is a CSV file with the number of a sample in the version and the name of its class in each line; without a
    name the sample is left out. `-` reads it from standard input.
    """
    from worker.jobs.local.importing import relabel_local

    with click.open_file(changes) as file:
        text = file.read(MAX_CHANGES + 1)
    if len(text) > MAX_CHANGES:
        message = f"the file of changes has more than {MAX_CHANGES:,} characters; list only the samples that change"
        raise InvalidConfig(message, field="changes")
    version = relabel_local(dataset, text, load_settings(), by)
    said = {**_as_json(version), "new": True}
    click.echo(json.dumps(said) if as_json else f"{version.reference} has {version.samples:,} samples")


@data.command("erase")
@click.argument("dataset", metavar="NAME[@N]")
@click.argument("samples", metavar="SAMPLE...", type=click.IntRange(0), nargs=-1, required=True)
@click.option("--by", metavar="WHO", default=None, help="Who deletes it, for the versions; default: this user.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json_option
def erase(dataset: str, samples: tuple[int, ...], by: str | None, yes: bool, as_json: bool) -> None:
    """Delete samples: their pictures leave every version of the data set, and do not come back.

    SAMPLE is a number in the version. What refers to the samples is listed first. Models keep what they have learned.
    """
    from training.importing.erasing import Erasure
    from worker.cli.formatting.datasets import format_use
    from worker.jobs.local.erasing import erase_local, sample_use
    from worker.models.store import this_user

    settings = load_settings()
    uses = [sample_use(dataset, sample, settings) for sample in samples]
    for use in uses:
        click.echo(format_use(use), err=True)
    if not yes and not click.confirm("delete? It cannot be undone", err=True):
        raise SystemExit(1)
    gone = erase_local(Erasure(uses[0].dataset, uses[0].sha256, samples, by or this_user()), settings)
    click.echo(json.dumps(asdict(gone)) if as_json else str(gone))


@data.command("remove")
@click.argument("dataset", metavar="NAME[@N]")
@click.option("--force", is_flag=True, help="Also where Redis cannot be asked which jobs need it.")
@as_json_option
def remove(dataset: str, force: bool, as_json: bool) -> None:
    """Remove a version, all versions of a name, or an alias."""
    from worker.jobs.local.importing import remove_local

    gone = [version.reference for version in remove_local(dataset, load_settings(), force=force)]
    click.echo(json.dumps({"removed": gone or [dataset]}) if as_json else f"removed {', '.join(gone) or dataset}")


@data.command("alias")
@click.argument("alias")
@click.argument("dataset", metavar="NAME[@N]")
@as_json_option
def alias(alias: str, dataset: str, as_json: bool) -> None:
    """Have ALIAS stand for a version, or for the newest version of a name."""
    from worker.jobs.local.importing import alias_local

    found = alias_local(alias, dataset, load_settings())
    said = {"alias": alias, "dataset": dataset, "version": found.reference}
    click.echo(json.dumps(said) if as_json else f"{alias} stands for {dataset} (now {found.reference})")


def _as_json(version: Version) -> dict[str, JsonValue]:
    from training.catalog.version import VERSION

    found: dict[str, JsonValue] = VERSION.dump_python(version, mode="json")
    return {"dataset": version.reference, **found}


def _teller(as_json: bool) -> Callable[[Progress], None]:
    """Return a function that shows progress on stderr: a line every `PROGRESS_SECONDS`, as JSON if `as_json`."""
    due = 0.0

    def tell(progress: Progress) -> None:
        nonlocal due
        now = time.monotonic()
        if now < due and progress.stage == "reading":
            return
        due = now + PROGRESS_SECONDS
        if as_json:
            click.echo(json.dumps(asdict(progress)), err=True)
            return
        of = f" of {progress.total:,}" if progress.total else ""
        left = "" if progress.seconds_left is None else f", {progress.seconds_left:,.0f} s left"
        refused = f", {progress.refused:,} refused" if progress.refused else ""
        rate = f", {progress.rate:,.0f}/s" if progress.rate else ""
        click.echo(f"{progress.stage}  {progress.read:,}{of} samples{refused}{rate}{left}", err=True)

    return tell
