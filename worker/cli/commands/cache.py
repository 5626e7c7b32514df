"""`preflight cache`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from preflight.cli.arguments import quote
from preflight.errors import InvalidConfig, PreflightError
from worker.cli.context import load_settings


@click.group()
def cache() -> None:
    """List or clear the plans that calibration measured here."""


@cache.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def cache_list(as_json: bool) -> None:
    """List the cached plans, newest first."""
    from calibration.cache.plan_cache import PlanCache
    from worker.cli.formatting.cache import cache_table, cached_as_json

    directory = load_settings().cache_dir
    with _cache_errors(directory):
        entries = PlanCache(directory).entries()
    if as_json:
        for entry in entries:
            click.echo(cached_as_json(entry))
    else:
        click.echo(cache_table(entries))


@cache.command("clear")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
def cache_clear(keys: tuple[str, ...]) -> None:
    """Delete cached plans and measurements. Without KEY: all; a prefix of a KEY is enough."""
    from calibration.cache.plan_cache import PlanCache

    directory = load_settings().cache_dir
    plans = PlanCache(directory)
    with _cache_errors(directory):
        known = plans.keys()
        for key in keys:
            matches = [name for name in known if key and name.startswith(key)]
            if not matches:
                raise InvalidConfig(
                    f"key {quote(key)} is not in the cache; `preflight cache list` lists the keys", field="key"
                )
            if len(matches) > 1:
                raise InvalidConfig(
                    f"key {quote(key)} matches {len(matches)} keys of the cache; write more of it", field="key"
                )
        cleared = sum(map(plans.clear, keys)) if keys else plans.clear()
    click.echo(f"{cleared} cleared")


@contextmanager
def _cache_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PreflightError(
            f"the plan cache in {directory} cannot be read or cleared ({error.strerror}); "
            "check its files, or set PREFLIGHT_CACHE_DIR"
        ) from error
