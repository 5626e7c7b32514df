"""Entry point of the command `preflight`."""

import sys

from preflight.packages import explain_hidden

BAD_INPUT = 2
"""Exit code of `worker.cli`, which may be what cannot be imported."""


def main() -> None:
    """Run the command; where a file of an application hides one of our packages, say which and exit with code 2."""
    hidden = explain_hidden()
    if hidden is not None:
        sys.stderr.write(f"preflight: {hidden}\n")
        raise SystemExit(BAD_INPUT)
    from worker.cli import main as run

    run()
