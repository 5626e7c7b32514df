"""Main function of the fork server: import torch once, then fork a child for each order.

It does nothing else, so that a fork is like a fresh interpreter after its imports: no parallel region has run
(libgomp's threads do not survive a fork), no generator was drawn from, no weights exist.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from training.process.child_main import die_with_parent, set_process_name
from training.process.fork_server.imports import Imports
from training.process.fork_server.loop import OrderLoop
from training.process.interrupts import STOP_SIGNALS

MODULE: Final = "training.process.fork_server.main"
NAME: Final = "fork-server"
"""Name of the process in ps and top."""
OOM_SCORE: Final = "500"
"""oom_score_adj: before the worker, after the children, which have 1000."""
_NAMES, _VARIABLES = TypeAdapter(list[str]), TypeAdapter(dict[str, str])


def main() -> None:
    """Serve orders: `python -m training.process.fork_server.main SOCKET PARENT MODULES EXTRA`."""
    socket_fd, parent, modules, extra = sys.argv[1:]
    # It ends with its parent alone. Its children begin with the signals held back, too, and release them.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    die_with_parent(int(parent))
    set_process_name(NAME)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    os.close(os.pidfd_open(os.getpid()))  # where the kernel or a sandbox has none, this process ends before any order
    control = socket.socket(fileno=int(socket_fd))
    os.set_inheritable(control.fileno(), False)
    loop = OrderLoop(control, Imports(_NAMES.validate_json(modules)), start_again)
    child = loop.serve(_VARIABLES.validate_json(extra))
    if child is not None:
        child.run()


def start_again(control: socket.socket, extra: dict[str, str]) -> None:
    """Become a server with other variables added for a plan: a library reads its variables only when it is loaded."""
    number, parent, modules, added = sys.argv[1:]
    base = {name: value for name, value in os.environ.items() if name not in _VARIABLES.validate_json(added)}
    os.set_inheritable(control.fileno(), True)
    arguments = [number, parent, modules, json.dumps(extra)]
    os.execve(sys.executable, [sys.executable, "-P", "-m", MODULE, *arguments], {**base, **extra})  # noqa: S606 - no shell


if __name__ == "__main__":
    main()
