"""Shell completion: names from the registry, job ids from Redis; empty when these are slow or fail."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Final, Literal, get_args

import click
from click.shell_completion import get_completion_class

from preflight.contract.registry import DATASETS, MODELS, nearest
from preflight.contract.registry import names as registered
from preflight.errors import InvalidConfig

REDIS_TIMEOUT: Final = 1.0
"""Longest wait for Redis, in seconds: a user waits for TAB."""
SHELLS: Final = ("bash", "zsh", "fish")

Kind = Literal["jobs", "active jobs", "datasets", "models", "recipes", "statuses", "shells"]


def names(kind: Kind, word: str) -> list[str]:
    """Return the names of this kind that begin with `word`; none on an error."""
    with suppress(Exception):  # a traceback at the prompt would be worse
        return [name for name in SOURCES[kind]() if name.startswith(word)]
    return []


def script(command: click.Command, shell: str) -> str:
    """Return the shell's completion script; raises `InvalidConfig` for an unknown shell."""
    completer = get_completion_class(shell) if shell in SHELLS else None
    if completer is None:
        raise InvalidConfig(
            f"shell {shell!r} is not known{nearest(shell, [*SHELLS])}; use one of {', '.join(SHELLS)}", field="shell"
        )
    return completer(command, {}, "preflight", "_PREFLIGHT_COMPLETE").source()


def _jobs(*, active: bool) -> Iterable[str]:
    """Return job ids; none when Redis does not answer in time."""
    from preflight.cli.context import load_settings, make_client

    client = make_client(load_settings())
    found: list[str] = []

    def fetch() -> None:
        with suppress(Exception):
            found.extend(client.ids(active=active))

    # A daemon thread, because DNS resolution has no timeout.
    fetching = Thread(target=fetch, daemon=True)
    fetching.start()
    fetching.join(REDIS_TIMEOUT)
    return list(found)


def _recipes() -> Iterable[str]:
    from preflight.contract.recipes import RECIPES

    return RECIPES


def _statuses() -> Iterable[str]:
    from preflight.wire import Status

    return get_args(Status)


SOURCES: Final[Mapping[Kind, Callable[[], Iterable[str]]]] = {
    "jobs": partial(_jobs, active=False), "active jobs": partial(_jobs, active=True),
    "datasets": partial(registered, DATASETS), "models": partial(registered, MODELS), "recipes": _recipes,
    "statuses": _statuses, "shells": lambda: SHELLS,
}  # fmt: skip
