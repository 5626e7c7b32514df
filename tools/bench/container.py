"""A separate container: real cgroups with a CPU quota and a memory limit, v1 or v2."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from preflight.container.cgroups import Files, cgroup_mounts, own_cgroup
from tools.faults.means import NotHere

ROOT: Final = Path("/sys/fs/cgroup")
PERIOD_US: Final = 100_000
"""Period of the quota: the kernel's default, and Docker's."""


@dataclass(frozen=True, slots=True)
class Container:
    """Cgroups with limits."""

    groups: tuple[Path, ...]
    first_version: bool

    @property
    def enter(self) -> Sequence[str]:
        """Return the command that joins them and becomes the one after it."""
        joins = " && ".join(f"echo $$ > {group}/cgroup.procs" for group in self.groups)
        return ["sh", "-c", f'{joins} && exec "$@"', "sh"]

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Move this process inside for a while, so that a child starts there."""
        files = Files(Path("/"))
        own = [own_cgroup(files, cgroup_mounts(files), controller).levels[0] for controller in ("cpu", "memory")]
        _join(self.groups)
        try:
            yield
        finally:
            _join(own)

    def kills(self) -> int:
        """Return how many of its processes the kernel killed for memory, not counting those in cgroups below it."""
        name = "memory.oom_control" if self.first_version else "memory.events.local"
        lines = (self.groups[-1] / name).read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])


@contextmanager
def container(processors: float, memory: int) -> Iterator[Container]:
    """Make a container with a quota of `processors` and `memory` bytes.

    Raises:
        NotHere: none can be made.
    """
    first = (ROOT / "memory/memory.limit_in_bytes").is_file()
    name = f"preflight-matrix-{time.time_ns()}"
    groups = (ROOT / "cpu" / name, ROOT / "memory" / name) if first else (ROOT / name,)
    quota = round(processors * PERIOD_US)
    limits = (
        {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota), "memory.limit_in_bytes": str(memory)}
        if first
        else {"cpu.max": f"{quota} {PERIOD_US}", "memory.max": str(memory)}
    )
    try:
        if not first:
            (ROOT / "cgroup.subtree_control").write_text("+cpu +memory")
        for group in groups:
            group.mkdir()
        for file, value in limits.items():
            (groups[0 if file.startswith("cpu") else -1] / file).write_text(value)
        for file in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
            with suppress(OSError):  # where swap is counted
                (groups[-1] / file).write_text(str(memory * first))
    except OSError as error:
        _remove(groups)
        raise NotHere(f"no container can be made ({error}); it takes root and a writable {ROOT}") from error
    try:
        yield Container(groups, first)
    finally:
        _remove(groups)


def _join(groups: Sequence[Path]) -> None:
    for group in groups:
        (group / "cgroup.procs").write_text(str(os.getpid()))


def _remove(groups: Sequence[Path]) -> None:
    for group in groups:
        for directory in (*group.glob("*/"), group):
            for _ in range(100):  # the kernel lets go of an ended process a little later
                try:
                    directory.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.05)
