"""The worker's commands. Each is an entry point of `preflight.commands` and imports what it needs when it runs."""

from preflight.cli.app import main

__all__ = ("main",)
