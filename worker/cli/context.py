"""Settings, client and logging of a command, imported when it runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preflight import Client
    from worker.config.settings import Settings


def load_settings() -> Settings:
    """Read the settings from the environment; raises `InvalidConfig`."""
    from worker.config.settings import load

    return load()


def make_client(settings: Settings) -> Client:
    """Return a client of the queue of the settings."""
    from preflight import Client

    key = None if settings.signing_key is None else settings.signing_key.get_secret_value()
    return Client(settings.redis_url, queue=settings.queue, signing_key=key, outbox=settings.outbox_dir)


def log_to_stderr(settings: Settings) -> None:
    """Send log records to stderr; stdout is for results."""
    from worker.events.logging import configure

    configure(settings.log_format, settings.log_level, sys.stderr, settings.secrets)
