"""Ledger: which jobs share the processors of a host, in one file that the workers of a state directory change in turn.

Each holder keeps a lock that the kernel frees when it dies, so an entry never outlives its process. Workers on other
processors, and on another kernel that shares the volume, have a separate ledger.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from preflight.container.resources import Resources
from preflight.contract.spec import STRICT
from preflight.files.atomic_files import read_text
from preflight.files.locks import FLAGS, is_locked
from training.prediction import Speeds
from worker.state.packing.division import Claim, divide_anyhow

DIRECTORY: Final = "packing"
LARGEST_FILE: Final = 1 << 20
"""Largest file, in bytes; an entry takes some 300."""
MOST_KNOWN: Final = 200
"""Most kinds of jobs that are remembered."""
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
LOOK_SECONDS: Final = 0.01
"""Seconds between two tries to change the ledger; a change takes a millisecond."""
PATIENCE: Final = 5.0
"""Seconds for which a change, or the next look at the queue, waits for others; then it is made all the same."""
SILENT_SECONDS: Final = 45.0
"""Seconds after which a worker that shows no sign of life counts no more: a frozen process would hold up all others. A
busy worker shows one with each heartbeat; its lease ends earlier."""

AWAITED: Final = "awaited"
"""File that a worker touches which finds the turn taken."""
AWAITED_SECONDS: Final = 1.0
"""Seconds for which such a worker counts as waiting; it looks four times as often."""

Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Entry:
    """One job that runs, or a seat in a group."""

    name: str
    """Name of the worker that runs the job."""
    job_id: str
    rq_id: str
    number: Count
    """Number of the job, in the order in which jobs were taken."""
    kind: str
    """Kind of job, of which speeds and memory are remembered."""
    phase: Literal["starting", "training"] = "starting"
    """`starting`: its plan is not chosen yet; no job begins while another one may calibrate."""
    most: Annotated[int, Field(ge=1)]
    """Threads of its plan."""
    is_fixed: bool = False
    is_group: bool = False
    """Whether it is trained by a group, as its leader or as a member."""
    is_alone: bool = False
    """Whether no other job may begin: it ran out of memory while it shared."""
    speeds: Speeds = ()
    memory_bytes: Count
    """Memory that the job takes, its supervisor and the process that keeps torch included."""
    processors: Count = 0
    """Processors that the job has now; 0: all."""
    used: Annotated[float, Field(ge=0)] = 0.0
    """Processors that its processes kept busy when they were last counted."""
    foreign: Annotated[float, Field(ge=0)] | None = None
    """Processors held then by processes that run no job of the ledger; None: not counted yet."""
    began: Annotated[float, Field(ge=0)] = 0.0
    """When its worker took it, seconds since the epoch."""

    @property
    def claim(self) -> Claim:
        """The job's claim to processors."""
        return Claim(most=self.most, speeds=self.speeds, is_fixed=self.is_fixed)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Known:
    """Threads, speeds and memory that were seen of a kind of job."""

    most: Annotated[int, Field(ge=1)]
    speeds: Speeds = ()
    memory_bytes: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Contents:
    """The ledger's file."""

    entries: tuple[Entry, ...] = ()
    known: dict[str, Known] = Field(default_factory=dict)
    next_number: Count = 1


CONTENTS = TypeAdapter(Contents)


class Ledger:
    """The jobs that share some processors."""

    def __init__(self, state_dir: Path, resources: Resources, processors: Callable[[], int]) -> None:
        """Open the ledger of a container with `resources`; `processors` are those that there are now."""
        self.directory = state_dir / DIRECTORY / _domain(resources)
        self._processors = processors

    def entries(self) -> tuple[Entry, ...]:
        """Return the jobs that run, in the order in which they were taken."""
        return tuple(entry for entry in self._read().entries if self._lives(entry))

    def known(self, kind: str) -> Known | None:
        """Return the threads, speeds and memory that were seen of a kind of job; None: none are remembered."""
        return self._read().known.get(kind)

    def processors_file(self, name: str) -> Path:
        """Return the file with the number of processors of a job; 0: all."""
        return self.directory / f"{name}.processors"

    def hold(self, name: str) -> int:
        """Return the descriptor of a lock that shows others that the worker `name` lives; raises `OSError`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        file = os.open(self._lock_path(name), FLAGS, 0o644)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.touch(name)
        return file

    def touch(self, name: str) -> None:
        """Show others that the worker `name` runs."""
        with suppress(OSError):
            os.utime(self._lock_path(name))

    def release(self, name: str, file: int) -> None:
        """Take the entry of `name` out, and free its lock, also where forks have the descriptor."""
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
            self.change(lambda contents: contents)
        os.close(file)
        self._clear(name)

    def add(self, entry: Entry) -> Entry:
        """Add a job; returns its entry with its number and its processors. Raises `OSError`."""

        def added(contents: Contents) -> Contents:
            numbered = replace(entry, number=contents.next_number)
            others = tuple(each for each in contents.entries if each.name != entry.name)
            return replace(contents, entries=(*others, numbered), next_number=contents.next_number + 1)

        return self._own(self.change(added), entry.name) or entry

    def update(self, name: str, change: Callable[[Entry], Entry]) -> Entry | None:
        """Change the entry of `name`; returns it, None where it is gone. Raises `OSError`."""

        def changed(contents: Contents) -> Contents:
            found = tuple(change(entry) if entry.name == name else entry for entry in contents.entries)
            return replace(contents, entries=found)

        return self._own(self.change(changed), name)

    def remember(self, kind: str, known: Known) -> None:
        """Remember the threads, speeds and memory that were seen of a kind of job; raises `OSError`."""

        def remembered(contents: Contents) -> Contents:
            kept = {name: each for name, each in contents.known.items() if name != kind}
            while len(kept) >= MOST_KNOWN:
                del kept[next(iter(kept))]
            return replace(contents, known={**kept, kind: known})

        self.change(remembered)

    def change(self, change: Callable[[Contents], Contents]) -> Contents:
        """Change the file, drop jobs whose process has died, and divide the processors again; raises `OSError`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with _locked(self.directory / "lock"):
            before = self._read()
            after = change(before)
            entries = tuple(entry for entry in after.entries if self._lives(entry))
            after = replace(after, entries=self._divided(entries))
            if after != before:
                _write(self.directory / "ledger.json", CONTENTS.dump_json(after))
                shares = {entry.name: entry.processors for entry in before.entries}
                for entry in after.entries:
                    if shares.pop(entry.name, None) != entry.processors:
                        _write(self.processors_file(entry.name), str(entry.processors).encode())
                for gone in shares:
                    self._clear(gone)
            return after

    def _divided(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        if len(entries) == 1:
            return (replace(entries[0], processors=0),)
        division = divide_anyhow(tuple(entry.claim for entry in entries), max(1, self._processors()))
        return tuple(
            replace(entry, processors=count) for entry, count in zip(entries, division.processors, strict=True)
        )

    def _clear(self, name: str) -> None:
        for path in (self._lock_path(name), self.processors_file(name)):
            path.unlink(missing_ok=True)

    def _own(self, contents: Contents, name: str) -> Entry | None:
        return next((entry for entry in contents.entries if entry.name == name), None)

    def _lives(self, entry: Entry) -> bool:
        path = self._lock_path(entry.name)
        return is_locked(path) and _age(path) < SILENT_SECONDS

    def _lock_path(self, name: str) -> Path:
        return self.directory / f"{name}.lock"

    def _read(self) -> Contents:
        """Return the contents; empty ones for a file that is damaged or absent."""
        try:
            return CONTENTS.validate_json(read_text(self.directory / "ledger.json", LARGEST_FILE))
        except (OSError, ValidationError):
            return Contents()


def turn(directory: Path) -> int | None:
    """Take the turn to look for the next job, which one worker has at a time; None: another one has it.

    Returns a descriptor to close. Without locks on a file system, and where a worker keeps the turn for longer than
    `PATIENCE`, as a frozen process does, each has it. Raises `OSError`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "turn"
    file = os.open(path, FLAGS, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        with suppress(OSError):
            (directory / AWAITED).touch()
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if _age(path) > PATIENCE else None
    except OSError:
        pass
    with suppress(OSError):
        os.utime(path)
    return file


def is_awaited(directory: Path) -> bool:
    """Whether another worker has waited for the turn in the last second."""
    path = directory / AWAITED
    return path.exists() and _age(path) < AWAITED_SECONDS


def _age(path: Path) -> float:
    """Return the seconds since a file was touched; 0 where they are unknown."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _domain(resources: Resources) -> str:
    """Return the name of a domain of shared processors: a kernel, a set of them, and a cgroup where a quota binds."""
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    quota: list[str] = []
    if resources.quota is not None and resources.quota < len(resources.affinity):
        with suppress(OSError):
            quota = [str(Path("/proc/self/ns/cgroup").stat().st_ino), Path("/proc/self/cgroup").read_text()]
    what = json.dumps([boot, sorted(resources.affinity), quota])
    return hashlib.sha256(what.encode()).hexdigest()[:16]


def _write(path: Path, data: bytes) -> None:
    """Write `data` so that a reader finds the former content or all of it; it is not synced against a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    file = os.open(path, FLAGS, 0o644)
    deadline = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOOK_SECONDS)
            except OSError:
                break
        yield
    finally:
        os.close(file)
