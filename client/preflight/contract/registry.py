"""Data sets and models by name, from entry points: a user's package adds its own without touching this one.

A job names an entry, never an import path: what is not installed under one of the two groups cannot be loaded.
"""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from preflight.errors import InvalidConfig

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

DATASETS: Final = "preflight.datasets"
MODELS: Final = "preflight.models"
RECIPE_MODELS: Final = "preflight.recipe_models"
"""Networks of recipes: found where no model is registered under their name, and never listed."""


def entries(group: str, name: str | None = None) -> "EntryPoints":
    """Return the entry points of `group`, or those of one name; it reads the metadata of all packages (5 ms)."""
    from importlib.metadata import entry_points  # most commands need none, and it imports the whole of `email`

    found = entry_points(group=group)
    return found if name is None else found.select(name=name)


def names(group: str) -> list[str]:
    """Return the registered names of `group`, sorted, without importing any of them."""
    return sorted({entry.name for entry in entries(group)})


def nearest(word: str, known: list[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known word that is nearest to `word`, or nothing."""
    found = get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {found[0]!r}?)" if found else ""


def find(group: str, name: str) -> "EntryPoint | None":
    """Return the entry point of `name` in `group`; for a model that is not registered, the network of a recipe."""
    groups = (group, RECIPE_MODELS) if group == MODELS else (group,)
    return next((entry for each in groups for entry in entries(each, name)), None)


def require(group: str, field: str, name: str) -> "EntryPoint":
    """Return what `find` does; raises `InvalidConfig` for `field` where there is nothing."""
    found = find(group, name)
    if found is not None:
        return found
    known = names(group)
    raise InvalidConfig(
        f"{field} {name!r} is not known{nearest(name, known)}; use one of {', '.join(known)}", field=field
    )


def load(group: str, field: str, name: str) -> object:
    """Import and return the object that is registered as `name` in `group`.

    Raises:
        InvalidConfig: the name is unknown, or its package cannot be imported.
    """
    entry = require(group, field, name)
    try:
        loaded: object = entry.load()
    except (ImportError, AttributeError) as error:
        raise InvalidConfig(
            f"{field} {name!r} is registered as {entry.value} but cannot be imported: {error}", field=field
        ) from error
    return loaded
