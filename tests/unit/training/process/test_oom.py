"""Kills for memory as the kernel's files tell of them, on made-up file trees."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.process.oom import Enclosure, oom_kills

V1 = "1 1 0:1 / {mount} rw - cgroup x rw,memory\n"
V2 = "1 1 0:1 / {mount} rw - cgroup2 x rw\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
EVENTS = "low 0\nhigh 0\nmax 7\noom 5\noom_kill {}\noom_group_kill 0\n"


def a_tree(root: Path, files: dict[str, str]) -> Path:
    """Write files beneath `root`, and return it."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def in_v1(mount: str = "/cg") -> dict[str, str]:
    """Return the files that put this process into /job of cgroup v1."""
    return {"proc/self/mountinfo": V1.format(mount=mount), "proc/self/cgroup": "4:memory:/job\n0::/elsewhere\n"}


def in_v2() -> dict[str, str]:
    """Return the files that put this process into /job of cgroup v2."""
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
def test_kills_are_read_where_this_process_is(tmp_path: Path, files: dict[str, str], kills: int) -> None:
    """The counter of its own cgroup, in v1 and v2; where there is none, that of the machine; else none."""
    assert oom_kills(a_tree(tmp_path, files)) == kills


def test_on_this_machine_they_are_read_too() -> None:
    """Whatever this machine shows is a number."""
    assert oom_kills() >= 0


@pytest.mark.parametrize("files", [in_v1(), in_v2(), {}], ids=["v1", "v2", "nothing"])
@pytest.mark.parametrize("home", [True, False])
def test_where_no_cgroup_can_be_made_there_is_none(tmp_path: Path, files: dict[str, str], home: bool) -> None:
    """A directory that the kernel gives no limit is no cgroup, and none is made where this process is not."""
    root = a_tree(tmp_path, files | {"cg/job/cgroup.procs": f"1\n{os.getpid() if home else 2}\n"})
    before = sorted(root.rglob("*"))
    with Enclosure(root) as enclosure:
        assert enclosure.procs is None
        assert (enclosure.peak_bytes(), enclosure.limit_bytes(), enclosure.oom_kills()) == (None, None, 0)
        assert sorted(root.rglob("*")) == before


def test_without_an_enclosure_its_own_limit_and_counter_count(tmp_path: Path) -> None:
    """What binds this process binds its children, and their kills are counted where it is."""
    files = in_v2() | {
        "cg/job/memory.max": "1048576\n",
        "cg/memory.max": "2097152\n",
        "proc/meminfo": "MemTotal: 9999 kB\n",
    }
    with Enclosure(a_tree(tmp_path, files | {"cg/job/memory.events": EVENTS.format(1)})) as enclosure:
        assert (enclosure.limit_bytes(), enclosure.oom_kills()) == (1 << 20, 1)
        a_tree(tmp_path, {"cg/job/memory.events": EVENTS.format(2)})
        assert enclosure.oom_kills() == 2


def test_what_dead_supervisors_left_is_removed(tmp_path: Path) -> None:
    """Enclosures of processes that are gone, or whose number another one has now; no others and nothing else."""
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        pass
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    root = a_tree(tmp_path, in_v1() | {"cg/job/cgroup.procs": f"{os.getpid()}\n"})
    left = [f"preflight-{ended.pid}-1-0", f"preflight-{os.getpid()}-1-0"]
    kept = [f"preflight-{os.getpid()}-{started}-99", "preflight-x", "job"]
    for name in left + kept:
        (root / "cg" / "job" / name).mkdir()
    with Enclosure(root):
        pass
    assert {path.name for path in (root / "cg" / "job").iterdir() if path.is_dir()} == set(kept)
