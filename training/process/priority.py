"""Idle priority: what runs beside a training takes the processor time that the training leaves.

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
"""A session of it gets 1.5 % of a processor that another one wants."""
LOW_NICENESS: Final = 10
"""A session of it gets 10 % of a processor that another one wants."""


def use_idle_priority(niceness: int) -> None:
    """Let this process and its children have the processor time that no other process of the session wants.

    Of what other sessions want they get the part that `niceness` has.
    """
    with suppress(OSError):  # forbidden, or a kernel without it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.nice(niceness - os.nice(0))
    lower_session()


def lower_session() -> None:
    """Give the session that this process leads the niceness of the process; a new session has none."""
    niceness = os.nice(0)
    if niceness > 0 and os.getsid(0) == os.getpid():
        with suppress(OSError):
            AUTOGROUP.write_text(str(niceness))
