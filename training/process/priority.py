"""Idle priority: a process next to a training takes the processor time that the training leaves.

Where the kernel groups processes by session (autogroup), each session gets an equal part of the processors, whatever
the priority of its processes is; there the session needs a low priority, too. See sched(7).
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

AUTOGROUP: Final = Path("/proc/self/autogroup")
"""The niceness of this process's session; absent where the kernel does not group by session."""
LOWEST_NICENESS: Final = 19
"""Lowest niceness: a session of it gets 1.5 % of a processor that another one wants."""


def use_idle_priority() -> None:
    """Let this process and its children have the processor time that no other process of their session wants."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:  # forbidden, or a kernel without it
        os.nice(LOWEST_NICENESS)


def lower_session() -> None:
    """Let the session of this process, which it leads, have the processor time that no other session wants."""
    with suppress(OSError):
        AUTOGROUP.write_text(str(LOWEST_NICENESS))
