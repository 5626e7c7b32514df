"""Where a calibration is struck: its processes, by whatever parent, its directory, its plan cache."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from bench.calibration.common import do_nothing
from bench.calibration.one import ANSWER, REQUEST, Answer, Request
from calibration.cache.lock import calibration_lock
from calibration.cache.plan_cache import TRIALS
from calibration.measure.child import MODULE
from training.config.plan import Plan
from training.process.journal import Record, decode

ROOT: Final = Path(__file__).parents[2]
SITE: Final = "site"
"""Beside the scenes' directories: where their Pythons look for modules, too."""
LIMIT: Final = 180.0
"""Seconds after which a calibration hangs."""
ORPHANS_AFTER: Final = 10.0
LOOK_EVERY: Final = 0.01
MARK: Final = "TMPDIR"
"""The variable by which the processes of a round are known, whoever their parent is by now."""

PLAN = TypeAdapter(Plan)


class Scene:
    """The directory and the processes of a round."""

    def __init__(self, directory: Path, request: Request, enter: Sequence[str] = ()) -> None:
        self.directory = directory
        self.request = request
        self._enter = enter
        self._process: subprocess.Popen[bytes] | None = None
        self._calls = 0
        for path in (request.directory, self._mark):
            path.mkdir(parents=True)

    @property
    def _mark(self) -> Path:
        return self.directory / "tmp"

    def start(self, request: Request) -> None:
        """Start a calibration."""
        self._calls += 1
        self._request_path.write_bytes(REQUEST.dump_json(request))
        self._process = self.spawn([sys.executable, "-P", "-m", "bench.calibration.one",
                                    str(self._request_path), str(self._answer_path)])  # fmt: skip

    def spawn(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Start a process of this round, in its cgroup."""
        site = self.directory.parent / SITE
        paths = os.pathsep.join((str(site), str(ROOT), os.environ.get("PYTHONPATH", "")))
        with self._stderr_path.open("ab") as stderr:
            return subprocess.Popen(
                [*self._enter, *command], env={**os.environ, MARK: str(self._mark), "PYTHONPATH": paths},
                stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, start_new_session=True,
            )  # fmt: skip

    @property
    def _request_path(self) -> Path:
        return self.directory / f"request-{self._calls}"

    @property
    def _answer_path(self) -> Path:
        return self.directory / f"answer-{self._calls}"

    @property
    def _stderr_path(self) -> Path:
        return self.directory / f"stderr-{self._calls}"

    def last_words(self) -> str:
        """Return the last line on stderr of the calibration."""
        return self._stderr_path.read_text(errors="replace").strip().rpartition("\n")[2]

    def running(self) -> bool:
        """Whether the calibration goes on."""
        return self._process is not None and self._process.poll() is None

    def sleep(self, seconds: float) -> None:
        """Wait, but not longer than the calibration takes."""
        deadline = time.monotonic() + seconds
        while self.running() and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)

    def kill(self) -> bool:
        """SIGKILL the calibration; return whether it was still running."""
        if not self.running() or self._process is None:
            return False
        self._process.kill()
        return self._process.wait() == -signal.SIGKILL

    def end(self) -> Answer | None:
        """Wait for the end of the calibration; return what it answered, None where it was killed."""
        self.sleep(LIMIT)
        if self.kill():
            raise TimeoutError(f"the calibration did not end within {LIMIT:.0f} s")
        return ANSWER.validate_json(self._answer_path.read_bytes()) if self._answer_path.exists() else None

    def call(self, request: Request) -> Answer | None:
        """Calibrate undisturbed."""
        self.start(request)
        return self.end()

    def processes(self) -> list[int]:
        """Return the processes of this round that live."""
        mark = f"{MARK}={self._mark}".encode()
        return [pid for pid in _pids() if mark in _content(pid, "environ").split(b"\0")]

    def measuring(self) -> list[int]:
        """Return those that measure."""
        return [pid for pid in self.processes() if MODULE.encode() in _content(pid, "cmdline").split(b"\0")]

    def orphans(self) -> int:
        """Return how many processes are left 10 s after the end; sooner where none is."""
        deadline = time.monotonic() + ORPHANS_AFTER
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
        return len(left)

    def locked(self) -> bool:
        """Whether the lock cannot be had."""
        with calibration_lock(self.request.cache, do_nothing, 0.0) as had:
            return not had

    def tried_again(self) -> set[Plan]:
        """Return the plans under which a calibration ended without a word, and which a later one tried all the same.

        The user's own plan and pieces of it are none of them: it is known that there is memory for those.
        """
        pending: set[Plan] = set()
        suspects: set[Plan] = set()
        again: set[Plan] = set()
        for record in self._ledger():
            if record.kind == "begin":
                suspects |= pending
                pending.clear()
            elif record.kind == "end":
                pending.clear()
            elif record.kind in ("attempt", "survived"):
                plan = PLAN.validate_json(json.dumps(record.payload["plan"]))
                pending.discard(plan)
                if record.kind == "attempt":
                    pending.add(plan)
                    again |= {plan} & suspects
        return {plan for plan in again if replace(plan, micro_batch=1) != replace(self.request.own, micro_batch=1)}

    def _ledger(self) -> Iterator[Record]:
        folder, suffix = TRIALS
        for path in (self.request.cache / folder).glob(f"*{suffix}"):
            for line in path.read_bytes().split(b"\n"):
                record = decode(line, None)
                if record is not None:
                    yield record

    def clear(self) -> None:
        """End whatever is left of the round."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _pids() -> Iterator[int]:
    yield from (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def _content(pid: int, name: str) -> bytes:
    """Return a file of a process, nothing where it has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
