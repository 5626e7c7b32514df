"""Environments whose Python imports a test's modules."""

import os
from pathlib import Path


def importing(directory: Path) -> dict[str, str]:
    """Return an environment that imports modules from `directory`, too."""
    paths = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def with_module(directory: Path, name: str, program: str) -> dict[str, str]:
    """Return an environment in which `import name` runs `program`, which is written to the new `directory`."""
    directory.mkdir()
    (directory / f"{name}.py").write_text(program)
    return importing(directory)
