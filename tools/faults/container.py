"""A worker process that is started again when it ends, as a platform does."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from training.process.fork_server import main as fork_server_main
from worker.queue.service import COMPANION

LOOK_EVERY: Final = 0.02

RESTART_AFTER: Final = 0.5
"""Seconds after which a platform starts a container again."""


class Container:
    """A worker process and what starts it again when it ends, as a platform does."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self.log = log
        self.restarted = True
        """Whether the platform starts it again; not after the death of a host."""
        self.exits: list[int] = []
        """Exit codes so far."""
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_at = 0.0

    def start(self, stdout: int | None = None) -> None:
        """Start the worker; output goes to the log unless `stdout` says otherwise."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout, stderr=log, start_new_session=True,
            )  # fmt: skip

    def tend(self) -> None:
        """Notice the end of the worker, and start it again where the platform does."""
        if self._process is not None and self._process.poll() is not None:
            self.exits.append(self._process.returncode)
            self._process, self._ended_at = None, time.monotonic()
        if self._process is None and self.restarted and time.monotonic() - self._ended_at > RESTART_AFTER:
            self.start()

    def ended(self) -> bool:
        """Whether the worker is gone."""
        return self._process is None or self._process.poll() is not None

    @property
    def tree(self) -> list[psutil.Process]:
        """The worker and everything below it, the worker first."""
        if self._process is None:
            return []
        try:
            worker = psutil.Process(self._process.pid)
            return [worker, *worker.children(recursive=True)]
        except psutil.Error:
            return []

    @property
    def worker(self) -> psutil.Process | None:
        """The worker process, while there is one."""
        return next(iter(self.tree), None)

    @property
    def supervisor(self) -> psutil.Process | None:
        """RQ's work-horse, while there is one."""
        others = [self.standby, *self.companions]
        return next((process for process in self._children if process not in others), None)

    @property
    def standby(self) -> psutil.Process | None:
        """The fork server, while there is one."""
        return next(filter(is_standby, self._children), None)

    @property
    def companions(self) -> list[psutil.Process]:
        """Workers that this one started to run jobs at the same time, and their fork servers; they stay for a while."""
        workers = [process for process in self._children if _name(process) == COMPANION]
        pids = {process.pid for process in workers}
        servers = (process for process in self.tree[1:] if is_standby(process))
        return [*workers, *(process for process in servers if _parent_id(process) in pids)]

    @property
    def _children(self) -> list[psutil.Process]:
        worker = self.worker
        return [process for process in self.tree[1:] if worker and _parent_id(process) == worker.pid]


def is_standby(process: psutil.Process) -> bool:
    """Whether a process is a worker's fork server, which has the command line of its children."""
    try:
        parent = process.parent()
        return _is_server(process) and not (parent is not None and _is_server(parent))
    except psutil.Error:
        return False


def _parent_id(process: psutil.Process) -> int | None:
    """Return the id of a process's parent; None for one that has just ended."""
    try:
        return process.ppid()
    except psutil.Error:
        return None


def _name(process: psutil.Process) -> str:
    """Return the name of a process; empty for one that has just ended."""
    try:
        return process.name()
    except psutil.Error:
        return ""


def _is_server(process: psutil.Process) -> bool:
    return fork_server_main.MODULE in process.cmdline()


def hit(targets: Sequence[psutil.Process | None], number: signal.Signals) -> bool:
    """Send a signal to each process that still exists; return whether any did."""
    was = False
    for target in targets:
        if target is not None:
            with contextlib.suppress(psutil.Error):
                target.send_signal(number)
                was = True
    return was


def clean_environment() -> dict[str, str]:
    """Return this process's environment without settings of the service."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PREFLIGHT_", "REDIS_"))}
