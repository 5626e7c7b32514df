"""Idle priority, in a fresh process."""

import subprocess
import sys

from training.process.priority import AUTOGROUP

SHOWN = """
import os
from training.process.priority import AUTOGROUP, lower_session, use_idle_priority

use_idle_priority()
lower_session()
print(os.sched_getscheduler(0) == os.SCHED_IDLE, AUTOGROUP.read_text().split()[-1] if AUTOGROUP.exists() else 19)
"""


def test_the_session_of_a_process_at_idle_priority_has_the_lowest() -> None:
    """Where the kernel divides processors by session, the priority of a process alone changes nothing."""
    before = AUTOGROUP.read_text() if AUTOGROUP.exists() else ""
    done = subprocess.run([sys.executable, "-c", SHOWN], start_new_session=True, check=True, capture_output=True)
    assert done.stdout.split() == [b"True", b"19"]
    assert (AUTOGROUP.read_text() if AUTOGROUP.exists() else "") == before
