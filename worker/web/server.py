"""The web service as a process: its socket, its log, its end."""

import signal
import socket
from types import FrameType
from typing import Final

import structlog
import uvicorn

from training.errors import InvalidConfig, PreflightError
from worker.config.settings import DEFAULT_PORT, Settings
from worker.ops.signals import hear_hangup
from worker.web.application import application
from worker.web.auth import is_loopback
from worker.web.protocol import Limits, bounded, most_connections
from worker.web.streams.broadcaster import Hub

PARTING: Final = 3
"""Seconds for which requests under way are waited for when the service is told to stop."""
BACKLOG: Final = 2048
"""Connections that may wait to be accepted."""


class Unbindable(PreflightError):
    """The address cannot be listened on."""

    reason = "unbindable"


class Server(uvicorn.Server):
    """Lets the viewers of event streams go when it is told to stop: they would never leave."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, at the second signal at once."""
        self._hub.let_go()
        super().handle_exit(sig, frame)


def serve(settings: Settings, host: str, port: int | None) -> None:
    """Serve jobs, events, metrics and the page until told to stop.

    Args:
        settings: of the service.
        host: address to listen on; `::` is every one of IPv6 and IPv4.
        port: where; None: `PORT`, else 8000.

    Raises:
        InvalidConfig: others than this machine could come in, and there is no token.
        Unbindable: the address is taken or not ours.
    """
    token = None if settings.api_token is None else settings.api_token.get_secret_value()
    if token is None and not is_loopback(host):
        raise InvalidConfig(
            f"--host {host} can be reached from other machines, but PREFLIGHT_API_TOKEN is not set; "
            "set it, or listen on 127.0.0.1",
            field="host",
        )
    chosen = port or settings.port or DEFAULT_PORT
    listening = _listen(host, chosen)
    app, hub = application(settings, token)
    config = uvicorn.Config(
        app, http=bounded(Limits(connections=most_connections())), log_config=None, access_log=False,
        server_header=False, date_header=False, proxy_headers=False,
        timeout_graceful_shutdown=PARTING, lifespan="on", ws="none",
    )  # fmt: skip
    log = structlog.get_logger("preflight")
    log.info(
        "serving", url=f"http://{f'[{host}]' if ':' in host else host}:{chosen}", queue=settings.queue,
        redis=settings.safe_redis_url, token="needed" if token else "none: this machine only", **settings.platform(),
    )  # fmt: skip
    server = Server(config, hub)
    hear_hangup(server.handle_exit)  # uvicorn hears only SIGTERM and SIGINT by itself
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn passes on, after its orderly end, the signal that it was told with
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        listening.close()
    log.info("served")


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raises `Unbindable`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(
            (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=family == socket.AF_INET6 and host == "::"
        )
    except OSError as error:
        raise Unbindable(
            f"{host} port {port} cannot be listened on ({error.strerror}); free it or choose another --port"
        ) from error
