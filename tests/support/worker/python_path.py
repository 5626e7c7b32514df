"""Environments whose Python imports modules of a test's own."""

import os
from pathlib import Path


def importing(directory: Path) -> dict[str, str]:
    """Return an environment that imports modules from `directory`, too."""
    paths = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def with_module(directory: Path, name: str, program: str) -> dict[str, str]:
    """Return an environment in which `program`, written to the new `directory`, is what `import name` runs."""
    directory.mkdir()
    (directory / f"{name}.py").write_text(program)
    return importing(directory)
