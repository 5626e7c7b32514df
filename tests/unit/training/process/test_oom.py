"""Out-of-memory kills and limits, read from made-up file trees."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.container.oom_kills import oom_kills
from training.process.oom import ChildCgroup

V1 = "1 1 0:1 / {mount} rw - cgroup x rw,memory\n"
V2 = "1 1 0:1 / {mount} rw - cgroup2 x rw\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
EVENTS = "low 0\nhigh 0\nmax 7\noom 5\noom_kill {}\noom_group_kill 0\n"


def a_tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def in_v1(mount: str = "/cg") -> dict[str, str]:
    """Files of a process in /job of cgroup v1."""
    return {"proc/self/mountinfo": V1.format(mount=mount), "proc/self/cgroup": "4:memory:/job\n0::/elsewhere\n"}


def in_v2() -> dict[str, str]:
    """Files of a process in /job of cgroup v2."""
    return {"proc/self/mountinfo": V2.format(mount="/cg"), "proc/self/cgroup": "0::/job\n"}


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        (in_v1() | {"cg/job/memory.oom_control": CONTROL.format(3), "cg/memory.oom_control": CONTROL.format(9)}, 3),
        (in_v2() | {"cg/job/memory.events": EVENTS.format(2), "cg/memory.events": EVENTS.format(9)}, 2),
        (in_v2() | {"proc/vmstat": "pgpgin 1\noom_kill 4\n"}, 4),
        (in_v2() | {"cg/job/memory.events": "garbage", "proc/vmstat": "oom_kill 4\n"}, 4),
        ({"proc/vmstat": "oom_kill 4\n"}, 4),
        ({}, 0),
    ],
)
def test_oom_kills_of_the_own_cgroup_else_of_the_machine(tmp_path: Path, files: dict[str, str], kills: int) -> None:
    assert oom_kills(a_tree(tmp_path, files)) == kills


def test_oom_kills_of_this_machine() -> None:
    assert oom_kills() >= 0


@pytest.mark.parametrize("files", [in_v1(), in_v2(), {}], ids=["v1", "v2", "nothing"])
@pytest.mark.parametrize("home", [True, False])
def test_no_cgroup_where_none_can_be_made(tmp_path: Path, files: dict[str, str], home: bool) -> None:
    """The kernel gives the directory no limit file, or this process is elsewhere."""
    root = a_tree(tmp_path, files | {"cg/job/cgroup.procs": f"1\n{os.getpid() if home else 2}\n"})
    before = sorted(root.rglob("*"))
    with ChildCgroup(root) as cgroup:
        assert cgroup.procs is None
        assert (cgroup.peak_bytes(), cgroup.limit_bytes(), cgroup.oom_kills()) == (None, None, 0)
        assert sorted(root.rglob("*")) == before


def test_without_a_cgroup_the_own_limit_and_counter_count(tmp_path: Path) -> None:
    limits = {"cg/job/memory.max": "1048576\n", "cg/memory.max": "2097152\n", "proc/meminfo": "MemTotal: 9999 kB\n"}
    with ChildCgroup(a_tree(tmp_path, in_v2() | limits | {"cg/job/memory.events": EVENTS.format(1)})) as cgroup:
        assert (cgroup.limit_bytes(), cgroup.oom_kills()) == (1 << 20, 1)
        a_tree(tmp_path, {"cg/job/memory.events": EVENTS.format(2)})
        assert cgroup.oom_kills() == 2


def test_the_limit_is_that_of_the_moment(tmp_path: Path) -> None:
    """A message about a kill names the limit that the container has by then."""
    limits = {"cg/job/memory.max": "2097152\n", "proc/meminfo": "MemTotal: 9999 kB\n"}
    with ChildCgroup(a_tree(tmp_path, in_v2() | limits)) as cgroup:
        a_tree(tmp_path, {"cg/job/memory.max": "1048576\n"})
        assert cgroup.limit_bytes() == 1 << 20


def test_cgroups_of_dead_parents_are_removed(tmp_path: Path) -> None:
    """A process id may belong to another process by now; other directories stay."""
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        pass
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    root = a_tree(tmp_path, in_v1() | {"cg/job/cgroup.procs": f"{os.getpid()}\n"})
    left = [f"preflight-{ended.pid}-1-0", f"preflight-{os.getpid()}-1-0"]
    kept = [f"preflight-{os.getpid()}-{started}-99", "preflight-x", "job"]
    for name in left + kept:
        (root / "cg" / "job" / name).mkdir()
    with ChildCgroup(root):
        pass
    assert {path.name for path in (root / "cg" / "job").iterdir() if path.is_dir()} == set(kept)
