"""Which priority the process of an import has; in its place stands one that waits to be stopped."""

import os
import time
from pathlib import Path

import psutil
import pytest
from redis import Redis
from support.worker.process_tree import command_line
from support.worker.services import wait_until

from worker.config.settings import Settings
from worker.imports.records import Imports, ImportState
from worker.queue.imports import chore as module
from worker.queue.imports.chore import ImportsChore

WAITING = f"""
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit({os.EX_TEMPFAIL}))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGTERM}})
signal.pause()
"""


def words() -> list[list[str]]:
    """Return the arguments of this process's children that stand for an import."""
    lines = [command_line(child) for child in psutil.Process().children()]
    return [line[4:] for line in lines if "waiting_import" in line]


def test_an_import_gives_way_to_a_job_and_goes_on_beside_it(
    settings: Settings, raw: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an idle worker it has the priority of all others; beside a job it takes what that leaves."""
    (tmp_path / "waiting_import.py").write_text(WAITING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(module, "MODULE", "waiting_import")
    monkeypatch.setattr(module, "PAUSE", 0.05)
    monkeypatch.setattr(module, "may_begin_beside", lambda _: True)
    imports = Imports(raw, settings.queue, settings.state_ttl)
    imports.open(ImportState(import_id="0" * 16, name="photos", created_at=time.time(), updated_at=time.time()))
    chore = ImportsChore(raw, settings.queue, settings, "tester", is_companion=False)
    chore.note(opened=True)
    chore.step()
    wait_until(lambda: len(words()) == 1)
    assert words()[0][:4] == ["0" * 16, "tester", str(len(os.sched_getaffinity(0))), "usual"]
    chore.step()
    assert len(words()) == 1

    def is_beside() -> bool:
        chore.step(busy=True)
        return [each[2:4] for each in words()] == [["1", "idle"]]

    wait_until(is_beside)
    chore.step(busy=True)
    assert is_beside()
    chore.stop()
    assert words() == []
