"""Settings and client of a command, imported when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preflight import Client
    from preflight.cli.settings import ClientSettings


def load_settings() -> ClientSettings:
    """Read the client's settings from the environment; raises `InvalidConfig`."""
    from preflight.cli.settings import load

    return load()


def make_client(settings: ClientSettings) -> Client:
    """Return a client of the queue of the settings."""
    from preflight import Client

    key = None if settings.signing_key is None else settings.signing_key.get_secret_value()
    return Client(settings.redis_url, queue=settings.queue, signing_key=key, outbox=settings.outbox_dir)
