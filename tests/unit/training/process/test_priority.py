"""Idle priority, in fresh processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.process.priority import AUTOGROUP

SHOWN = """
import os, subprocess, sys
from pathlib import Path
from training.process.priority import AUTOGROUP, lower_session, use_idle_priority

if "child" in sys.argv:
    lower_session()
else:
    if "idle" in sys.argv:
        use_idle_priority()
    if "parent" in sys.argv:
        child = [sys.executable, "-c", os.environ["SHOWN"], "child"]
        sys.exit(subprocess.run(child, start_new_session=True).returncode)
print(os.sched_getscheduler(0) == os.SCHED_IDLE, AUTOGROUP.read_text().split()[-1] if AUTOGROUP.exists() else "-")
"""
LOWEST, USUAL = ("19", "0") if AUTOGROUP.exists() else ("-", "-")


@pytest.mark.parametrize(
    ("words", "leads", "expected"),
    [
        (["idle"], True, ["True", LOWEST]),
        (["idle", "parent"], True, ["True", LOWEST]),
        (["idle"], False, ["True", USUAL]),
        (["usual", "parent"], True, ["False", USUAL]),
    ],
    ids=["leader", "its child in a session of its own", "in the session of others", "usual priority"],
)
def test_a_session_at_idle_priority_has_the_lowest(words: list[str], leads: bool, expected: list[str]) -> None:
    """Only its own: others in the session of a process that does not lead it keep their part."""
    if not leads and AUTOGROUP.exists() and Path(AUTOGROUP).read_text().split()[-1] != USUAL:
        pytest.skip("this session has a low priority itself")
    command = [sys.executable, "-c", SHOWN, *words]
    shown = subprocess.run(
        command, env={**os.environ, "SHOWN": SHOWN}, start_new_session=leads, check=True, capture_output=True, text=True
    ).stdout
    assert shown.split() == expected
