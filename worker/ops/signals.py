"""How a process hears that its terminal was closed; without imports that the command line would wait for."""

import signal
from collections.abc import Callable
from types import FrameType


def hear_hangup(handler: Callable[[int, FrameType | None], None]) -> None:
    """Have `handler` called at SIGHUP, unless it is ignored, as it is behind nohup."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, handler)
