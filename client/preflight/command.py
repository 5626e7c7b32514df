"""Entry point of the command `preflight`."""

import sys
from importlib.metadata import entry_points
from typing import Final

from preflight.packages import explain_hidden

BAD_INPUT: Final = 2
"""Exit code of `worker.cli`, which may be what cannot be imported."""
COMMANDS: Final = "preflight.commands"
"""Group of entry points: each is a click command that takes all of the command line."""


def main() -> None:
    """Run the command; where a file of an application hides one of our packages, say which and exit with code 2."""
    if sys.argv[1:2] == ["run"]:  # beside an application's own worker.py, and without a worker's packages
        from preflight.cli.run import run

        run(sys.argv[2:], prog_name="preflight run")
        return
    hidden = explain_hidden()
    if hidden is not None:
        sys.stderr.write(f"preflight: {hidden}\n")
        raise SystemExit(BAD_INPUT)
    for entry in entry_points(group=COMMANDS):
        commands = entry.load()
        commands()
        return
    sys.stderr.write("preflight: the commands are those of the package preflight-worker, which is not installed here\n")
    raise SystemExit(BAD_INPUT)
