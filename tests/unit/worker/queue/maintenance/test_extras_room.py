"""Where extras may run beside a job, and when they give way."""

from pathlib import Path

import pytest

from preflight.container.resources import MemoryUse, Resources
from worker.queue.maintenance.extras_room import may_run_beside, must_give_way

GIB = 1 << 30


def container(cores: int, memory: int, used: int | None) -> Resources:
    return Resources(
        cores=cores, quota=None, memory_bytes=memory, affinity=frozenset(range(cores)), working_set_bytes=used,
        cores_source="affinity", memory_source="MemTotal", warnings=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cores", "memory", "used", "expected"),
    [
        (2, 4 * GIB, GIB, True),
        (1, 4 * GIB, GIB, False),
        (2, 4 * GIB, 3 * GIB, False),
        (2, 2 * GIB, GIB // 10, False),
        (2, 64 * GIB, 33 * GIB, False),
        (2, 4 * GIB, None, False),
    ],
    ids=["room", "one core", "used", "small", "large, but used", "unknown"],
)
def test_extras_begin_beside_a_job(cores: int, memory: int, used: int | None, expected: bool) -> None:
    assert may_run_beside(container(cores, memory, used)) is expected


@pytest.mark.parametrize(("used", "expected"), [(2 * GIB, False), (3 * GIB + 1, True)])
def test_extras_give_way_before_memory_is_short(used: int, expected: bool, tmp_path: Path) -> None:
    """Of 4 GiB, a quarter has to be free."""
    own = tmp_path / "sys/fs/cgroup"
    own.mkdir(parents=True)
    proc = tmp_path / "proc/self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text("0::/\n")
    (proc / "mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (own / "memory.max").write_text(f"{4 * GIB}\n")
    (own / "memory.current").write_text(f"{used}\n")
    (own / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")
    assert must_give_way(MemoryUse(tmp_path, mem_total=64 * GIB)) is expected
