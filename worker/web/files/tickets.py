"""Tickets: addresses of one file that work without the token for a minute.

A browser that opens or downloads an address sends no `authorization`. The token must not be in an address; a ticket
may, since it serves for one file and a short time.
"""

import hashlib
import hmac
import re
import time
from typing import Final

SECONDS: Final = 60
PARAMETER: Final = "ticket"
TICKET: Final = re.compile(r"(\d{1,12})\.[0-9a-f]{64}", re.ASCII)


class Tickets:
    """Issues and checks tickets; every process with the same token accepts them."""

    def __init__(self, token: str | None, prefix: str = "") -> None:
        """Sign with `token`; an address begins with `prefix`, below which a proxy serves."""
        self._key = None if token is None else token.encode()
        self._prefix = prefix

    def address(self, path: str) -> str:
        """Return an address that leads to `path` for a minute; `path` itself where no token is needed."""
        if self._key is None:
            return self._prefix + path
        return f"{self._prefix}{path}?{PARAMETER}={self._sign(path, int(time.time()) + SECONDS)}"

    def accepts(self, path: str, ticket: str) -> bool:
        """Whether `ticket` was issued for `path`, less than a minute ago."""
        found = TICKET.fullmatch(ticket)
        if self._key is None or found is None or int(found[1]) < time.time():
            return False
        return hmac.compare_digest(ticket, self._sign(path, int(found[1])))

    def _sign(self, path: str, expires: int) -> str:
        digest = hmac.new(self._key or b"", f"{PARAMETER}\n{path}\n{expires}".encode(), hashlib.sha256)
        return f"{expires}.{digest.hexdigest()}"
