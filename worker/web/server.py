"""The server process: socket, log, shutdown."""

import signal
import socket
from types import FrameType
from typing import Final

import structlog
import uvicorn

from preflight.cli.interrupts import handle_hangup
from preflight.errors import InvalidConfig, PreflightError
from worker.broker.connect import glance_at_server
from worker.config.settings import DEFAULT_PORT, Settings
from worker.web.application import create_app
from worker.web.auth import is_loopback
from worker.web.protocol import Limits, max_connections, protocol_with
from worker.web.streams.broadcaster import Broadcaster

SHUTDOWN_TIMEOUT: Final = 3
"""Seconds that running requests get at shutdown."""
BACKLOG: Final = 2048
"""Connections that wait to be accepted."""


class Unbindable(PreflightError):
    """The server cannot listen on the address."""

    reason = "unbindable"


class Server(uvicorn.Server):
    """Disconnects the viewers of event streams at shutdown: they would never leave."""

    def __init__(self, config: uvicorn.Config, broadcaster: Broadcaster) -> None:
        super().__init__(config)
        self._broadcaster = broadcaster

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down; the second signal exits at once."""
        self._broadcaster.disconnect_all()
        super().handle_exit(sig, frame)


def serve(settings: Settings, host: str, port: int | None) -> None:
    """Serve jobs, events, metrics and the page until a signal.

    Args:
        settings: Redis, queue and token.
        host: address to listen on; `::` is every IPv6 and IPv4 address.
        port: None: `PORT`, else 8000.

    Raises:
        InvalidConfig: other machines could connect, and there is no token.
        Unbindable: the address is in use or not available.
        RedisUnreachable: Redis is a cluster.
    """
    token = None if settings.api_token is None else settings.api_token.get_secret_value()
    if token is None and not is_loopback(host):
        raise InvalidConfig(
            f"--host {host} can be reached from other machines, but PREFLIGHT_API_TOKEN is not set; "
            "set it, or listen on 127.0.0.1",
            field="host",
        )
    glance_at_server(settings, writes=settings.web_readonly == "off")
    chosen = port or settings.port or DEFAULT_PORT
    listening = _listen(host, chosen)
    app, broadcaster = create_app(settings, token)
    limits = Limits(connections=max_connections(), idle_s=settings.web_keep_alive)
    config = uvicorn.Config(
        app, http=protocol_with(limits), log_config=None, access_log=False,
        log_level=None if settings.log_level == "debug" else "warning",
        server_header=False, date_header=False, proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT, lifespan="on", ws="none",
    )  # fmt: skip
    log = structlog.get_logger("preflight")
    log.info(
        "serving", message="the web service answers",
        url=f"http://{f'[{host}]' if ':' in host else host}:{chosen}", queue=settings.queue,
        redis=settings.safe_redis_url, token="needed" if token else "none: this machine only", **settings.platform(),
    )  # fmt: skip
    for note in settings.notes:
        log.warning("settings_note", message=note)
    server = Server(config, broadcaster)
    handle_hangup(server.handle_exit)  # uvicorn handles only SIGTERM and SIGINT
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn raises the signal again after its shutdown
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        listening.close()
    log.info("served", message="the web service has stopped")


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises `Unbindable`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(
            (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=family == socket.AF_INET6 and host == "::"
        )
    except OSError as error:
        raise Unbindable(
            f"{host} port {port} cannot be listened on ({error.strerror}); free it or choose another --port"
        ) from error
