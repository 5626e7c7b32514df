"""`preflight run` as a user starts it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import JsonValue

PREFLIGHT: Final = str(Path(sys.executable).with_name("preflight"))


def run(
    command: Sequence[str], *options: str, variables: Mapping[str, str] | None = None, cwd: Path | None = None,
    stdin: str = "", timeout: float = 150,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a command under `preflight run`; its output is text."""
    return subprocess.run(
        [PREFLIGHT, "run", "--same-start", *options, "--", *command],
        input=stdin, capture_output=True, text=True, timeout=timeout, cwd=cwd, env={**os.environ, **(variables or {})},
        check=False,
    )  # fmt: skip


def read_report(path: Path) -> dict[str, JsonValue]:
    """Return the content of a file that `--json` wrote."""
    found: dict[str, JsonValue] = json.loads(path.read_text())
    return found
