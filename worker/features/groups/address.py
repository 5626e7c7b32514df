"""The address of this worker that other workers of a group connect to."""

import socket
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from preflight.errors import InvalidConfig
from worker.config.settings import Settings

REDIS_PORT: Final = 6379
LOOPBACK: Final = "127.0.0.1"


def own_address(settings: Settings) -> str:
    """Return an IPv4 or IPv6 address of this machine: the advertised one, else the one from which Redis is reached.

    Raises:
        InvalidConfig: PREFLIGHT_ADVERTISE_HOST does not resolve, or is no address of this machine.
    """
    if settings.advertise_host is not None:
        return _advertised(settings.advertise_host)
    url = urlsplit(settings.redis_url)
    if url.hostname is not None:
        for address in _resolve(url.hostname, url.port or REDIS_PORT):
            with suppress(OSError), socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
                probe.connect((address, url.port or REDIS_PORT))  # sends nothing: it chooses a route
                return str(probe.getsockname()[0])
    return next((address for address in _resolve(socket.gethostname(), 0) if is_own(address)), LOOPBACK)


def _advertised(host: str) -> str:
    found = _resolve(host, 0)
    if not found:
        raise InvalidConfig(
            f"PREFLIGHT_ADVERTISE_HOST is {host!r}, which no name server knows; set it to an address of this worker",
            field="advertise_host",
        )
    own = next((address for address in found if is_own(address)), None)  # replicas share a name on some platforms
    if own is None:
        raise InvalidConfig(
            f"PREFLIGHT_ADVERTISE_HOST is {host!r}, which is {found[0]}, no address of this machine; "
            "set it to one, or leave it out",
            field="advertise_host",
        )
    return own


def is_own(address: str) -> bool:
    """Whether this machine can listen at an address."""
    with suppress(OSError), socket.socket(_family(address), socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host; none where it is unknown."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(each[4][0]) for each in found))
