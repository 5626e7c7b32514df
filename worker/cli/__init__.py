"""The command line. Each command imports what it needs when it runs, so that `--help` is immediate."""

from worker.cli.app import main

__all__ = ("main",)
