"""Order: the message that asks a fork server for a child, together with four file descriptors.

These are the child's standard input, its output, the pipe that it notifies, and the connection for answers.
"""

from typing import Final

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

MAX_MESSAGE: Final = 64 << 10
"""Most bytes of an order."""
STDIN, STDOUT, STDERR = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Order:
    """Order for one child."""

    module: str
    """Module with a function `main` that calls `serve_request`."""
    request: str
    """Path of the request file."""
    extra: dict[str, str]
    """Environment variables that a plan adds to those of the server."""


ORDER = TypeAdapter(Order)
