"""Real cgroups for tests."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from preflight.container.cgroups import Files, cgroup_mounts, own_cgroup


@contextmanager
def new_cgroup(controller: str) -> Iterator[Path]:
    """Make an empty cgroup of v1 below this process's own, and remove it; skip the test where it cannot be had."""
    files = Files(Path("/"))
    cgroup = own_cgroup(files, cgroup_mounts(files), controller)
    if cgroup.version != 1 or not cgroup.levels:
        pytest.skip(
            f"cgroup v1 does not carry {controller} here; in v2 a cgroup with processes can have none beneath it"
        )
    directory = cgroup.levels[0] / f"test-{uuid.uuid4().hex}"
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"cgroups cannot be made here: {error}")
    yield directory
    remove_cgroup(directory)


def remove_cgroup(directory: Path) -> None:
    """Remove a cgroup whose processes have ended."""
    for _ in range(100):  # the kernel lets go of an ended process a little later
        try:
            directory.rmdir()
            break
        except OSError:
            time.sleep(0.02)
    assert not directory.exists()
