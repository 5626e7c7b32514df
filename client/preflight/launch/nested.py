"""A command of ours inside `preflight run`: it tunes its trainings itself, and the outer one says so."""

from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from preflight.launch.site.sitecustomize import VARIABLE

NESTED: Final = "nested"
"""Name of the file that an inner command leaves in the folder of the outer one."""


def leave_outer_run(environment: MutableMapping[str, str]) -> None:
    """Keep the hook of a `preflight run` around this process out of those that it starts."""
    folder = environment.pop(VARIABLE, None)
    if folder:
        with suppress(OSError):
            Path(folder, NESTED).touch()
