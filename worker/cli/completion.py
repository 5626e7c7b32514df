"""What a shell completes with TAB: names from the registry, job ids from Redis. It is quick, or says nothing."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Final, Literal, get_args

import click
from click.shell_completion import get_completion_class

from training.config.registry import DATASETS, MODELS, nearest
from training.config.registry import names as registered
from training.errors import InvalidConfig

PATIENCE: Final = 1.0
"""Seconds that Redis gets: a person waits for TAB."""
SHELLS: Final = ("bash", "zsh", "fish")

Kind = Literal["jobs", "jobs that go on", "datasets", "models", "recipes", "statuses", "shells"]


def names(kind: Kind, word: str) -> list[str]:
    """Return the names of some kind that begin with `word`; none where they cannot be had."""
    with suppress(Exception):  # whatever it is, a line at the prompt would be worse
        return [name for name in FINDERS[kind]() if name.startswith(word)]
    return []


def script(command: click.Command, shell: str) -> str:
    """Return the script that makes a shell ask this command for what can follow.

    Raises:
        InvalidConfig: the shell is not known.
    """
    completer = get_completion_class(shell) if shell in SHELLS else None
    if completer is None:
        raise InvalidConfig(
            f"shell {shell!r} is not known{nearest(shell, [*SHELLS])}; use one of {', '.join(SHELLS)}", field="shell"
        )
    return completer(command, {}, "preflight", "_PREFLIGHT_COMPLETE").source()


def _jobs(*, going_on: bool) -> Iterable[str]:
    """Return job ids; none where Redis takes too long, or does not answer."""
    from worker.client import Client
    from worker.config.settings import load

    settings = load()
    client = Client(settings.redis_url, queue=settings.queue)
    found: list[str] = []

    def ask() -> None:
        with suppress(Exception):
            found.extend(client.ids(going_on=going_on))

    # A thread that is left behind: not even a name server that does not answer holds up the shell.
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return list(found)


def _recipes() -> Iterable[str]:
    from training.config.recipes import RECIPES

    return RECIPES


def _statuses() -> Iterable[str]:
    from worker.wire import Status

    return get_args(Status)


FINDERS: Final[Mapping[Kind, Callable[[], Iterable[str]]]] = {
    "jobs": partial(_jobs, going_on=False), "jobs that go on": partial(_jobs, going_on=True),
    "datasets": partial(registered, DATASETS), "models": partial(registered, MODELS), "recipes": _recipes,
    "statuses": _statuses, "shells": lambda: SHELLS,
}  # fmt: skip
"""Kind -> how its names are found."""
