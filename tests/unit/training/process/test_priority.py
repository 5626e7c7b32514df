"""Idle priority, in fresh processes."""

import os
import subprocess
import sys

import pytest

from training.process.priority import AUTOGROUP

SHOWN = """
import os, subprocess, sys
from training.process.priority import AUTOGROUP, lower_session, use_idle_priority

lower_session()
if "idle" in sys.argv:
    use_idle_priority(10)
if "parent" in sys.argv:
    sys.exit(subprocess.run([sys.executable, "-c", os.environ["SHOWN"]], start_new_session=True).returncode)
print(os.sched_getscheduler(0) == os.SCHED_IDLE, AUTOGROUP.read_text().split()[-1] if AUTOGROUP.exists() else "-")
"""
LOW, USUAL = ("10", "0") if AUTOGROUP.exists() else ("-", "-")


@pytest.mark.skipif(os.nice(0) != 0, reason="these tests have a low priority themselves")
@pytest.mark.parametrize(
    ("words", "expected"),
    [(["idle"], ["True", LOW]), (["idle", "parent"], ["True", LOW]), (["parent"], ["False", USUAL])],
    ids=["leader", "its child in a session of its own", "usual priority"],
)
def test_the_session_of_a_process_at_idle_priority_has_a_low_one(words: list[str], expected: list[str]) -> None:
    """Where the kernel divides processors by session, the priority of a process alone changes nothing."""
    command = [sys.executable, "-c", SHOWN, *words]
    environment = {**os.environ, "SHOWN": SHOWN}
    done = subprocess.run(
        command, env=environment, start_new_session=True, check=True, capture_output=True, text=True
    )  # fmt: skip
    assert done.stdout.split() == expected
