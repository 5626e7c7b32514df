"""Modules of tests, those of child processes among them, and environments whose Python imports them."""

import os
import textwrap
from pathlib import Path
from typing import Final

CHILD: Final = """
import os, signal, subprocess, sys, threading, time
from pathlib import Path
from pydantic import JsonValue, TypeAdapter
from preflight.errors import DatasetError
from training.process.child_main import serve_request

{first}

def body(request, journal, should_stop):
{statements}

def main():
    serve_request(TypeAdapter(dict[str, JsonValue]), body)

if __name__ == "__main__":
    main()
"""


def importing(directory: Path) -> dict[str, str]:
    """Return an environment that imports modules from `directory`, too."""
    paths = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def with_module(directory: Path, name: str, program: str) -> dict[str, str]:
    """Return an environment in which `import name` runs `program`, which is written to the new `directory`."""
    directory.mkdir()
    (directory / f"{name}.py").write_text(program)
    return importing(directory)


def write_child(directory: Path, name: str, statements: str, first: str = "") -> None:
    """Write a module whose task are these statements; `first` runs when it is imported."""
    task = textwrap.indent(statements.strip(), "    ")
    (directory / f"{name}.py").write_text(CHILD.replace("{first}", first).replace("{statements}", task))
