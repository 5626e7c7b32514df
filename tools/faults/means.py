"""Means that some faults need of the machine: a memory limit, a separate disk, a settable clock, busy neighbours."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

V1: Final = Path("/sys/fs/cgroup/memory")
V2: Final = Path("/sys/fs/cgroup")
DAY: Final = 86_400
FILLER: Final = "filler"
STARTING: Final = 0.5
"""Seconds until a neighbour is busy."""


class NotHere(Exception):
    """The machine or the user's rights on it do not allow this; the message says what is missing."""


@contextlib.contextmanager
def memory_limit(size: int) -> Iterator[list[str]]:
    """Make a cgroup that allows `size` bytes; yields a command that joins it and execs the command after it.

    Raises:
        NotHere: none can be made.
    """
    first = (V1 / "memory.limit_in_bytes").is_file()
    path = (V1 if first else V2) / f"preflight-faults-{time.time_ns()}"
    try:
        path.mkdir()
    except OSError as error:
        raise NotHere(
            f"no cgroup can be made ({error.strerror}); it takes root and a writable {path.parent}"
        ) from error
    try:
        (path / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(size))
        with contextlib.suppress(OSError):  # where swap is counted
            (path / ("memory.memsw.limit_in_bytes" if first else "memory.swap.max")).write_text(str(size * first))
        yield ["sh", "-c", f'echo $$ > {path}/cgroup.procs && exec "$@"', "sh"]
    except PermissionError as error:
        raise NotHere(f"{error.filename} takes no limit ({error.strerror})") from error
    finally:
        for group in (*path.glob("*/"), path):
            _remove(group)


def _remove(group: Path) -> None:
    """Remove a cgroup; the last of its processes may take a moment to be gone."""
    for _ in range(100):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)


def memory_kills() -> int:
    """Return how many processes the kernel of this machine has killed for memory, in whatever cgroup."""
    lines = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(lines["oom_kill"])


@contextlib.contextmanager
def disk(path: Path, size: int) -> Iterator[None]:
    """Mount an empty file system of `size` bytes at `path`; raises `NotHere`."""
    path.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)  # noqa: S607 - mount was found


def fill(path: Path) -> None:
    """Fill the file system at `path` to the last byte."""
    for size in (1 << 16, 1):
        with (path / FILLER).open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(size)):
                pass


def make_room(path: Path) -> None:
    """Undo `fill`."""
    (path / FILLER).unlink()


def make_read_only(path: Path) -> None:
    """Let nobody write to the file system at `path`, whatever the permission bits say."""
    _mount("-o", "remount,ro", str(path))


def make_writable(path: Path) -> None:
    """Undo `make_read_only`."""
    _mount("-o", "remount,rw", str(path))


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Run so many busy processes outside of any container: they are children of this process, and end with it."""
    busy = "import sys; from training.process.child_main import die_with_parent; die_with_parent(int(sys.argv[1]))"
    command = [sys.executable, "-P", "-c", f"{busy}\nwhile True: pass", str(os.getpid())]
    with contextlib.ExitStack() as stack:
        busy_now = [subprocess.Popen(command) for _ in range(count)]
        for process in busy_now:
            stack.callback(process.wait)
            stack.callback(process.kill)
        time.sleep(STARTING * bool(busy_now))
        yield busy_now


def _mount(*arguments: str) -> None:
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True)  # noqa: S607 - wherever it is
    except FileNotFoundError as error:
        raise NotHere("there is no mount") from error
    if done.returncode != 0:
        raise NotHere(f"mounting takes root: {done.stderr.strip()}")


class Clock:
    """A system clock that can be set, for the processes that are started with its environment."""

    def __init__(self, directory: Path) -> None:
        """Make a clock; raises `NotHere` without a C compiler."""
        library = directory / "clock.so"
        source = Path(__file__).with_name("clock.c")
        try:
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)  # noqa: S607 - wherever it is
        except FileNotFoundError as error:
            raise NotHere("there is no C compiler (cc) to make a clock with") from error
        self._file = directory / "clock"
        self._file.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(self._file)}
        self.set(DAY)
        shown = subprocess.run(
            [sys.executable, "-c", "import time; print(time.time())"],
            env={**os.environ, **self.environment}, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        if abs(float(shown) - time.time() - DAY) > 60:
            raise NotHere("the clock that was set is not the one that processes see here")
        self.set(0)

    def set(self, seconds: int) -> None:
        """Set the clock to so many seconds after the true time."""
        with self._file.open("r+b") as file:  # in place: the processes have mapped it
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))
