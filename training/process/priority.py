"""Idle priority: what runs beside a training takes the processor time that the training leaves.

Where the kernel groups processes by session (autogroup), each session gets an equal part of the processors, whatever
the priority of its processes is; there the session needs the lowest priority, too. See sched(7).
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

LOWEST_NICENESS: Final = 19
AUTOGROUP: Final = Path("/proc/self/autogroup")
"""The niceness of this process's session; absent where the kernel does not group by session."""


def use_idle_priority() -> None:
    """Let this process and its children have the processor time that nobody else wants."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:  # forbidden, or a kernel without it
        os.nice(LOWEST_NICENESS)
    lower_session()


def lower_session() -> None:
    """Give the session that this process leads the lowest priority where the process has it; a new session has none."""
    is_idle = os.sched_getscheduler(0) == os.SCHED_IDLE or os.nice(0) == LOWEST_NICENESS
    if is_idle and os.getsid(0) == os.getpid():
        with suppress(OSError):
            AUTOGROUP.write_text(str(LOWEST_NICENESS))
