"""Out-of-memory kills of children in real cgroups: only the child is killed, and the reason is reported."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.files.cgroups import new_cgroup

from preflight.container.cgroups import Files, cgroup_mounts

MIB = 1 << 20

A_CHILD = """
import subprocess, sys
from pydantic import JsonValue, TypeAdapter
from training.process.child_main import serve_request

ALLOCATE = "blocks = []\\nwhile True: blocks.append(bytearray(b'x' * (8 << 20)))"

def body(request, journal, should_stop):
    match request["act"]:
        case "allocate":
            exec(ALLOCATE)
        case "allocate in a child":
            subprocess.run([sys.executable, "-c", ALLOCATE], check=True)
        case "report cgroup":
            journal.write("done", {"cgroup": open("/proc/self/cgroup").read()}, durable=True)

serve_request(TypeAdapter(dict[str, JsonValue]), body)
"""

A_SUPERVISOR = """
import json, os, sys
from pathlib import Path
from preflight.errors import PreflightError
from training.process.oom import ChildCgroup
from training.process.child import Child
from training.process.runner import iter_records

directory = Path(sys.argv[1])
environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(directory), os.environ.get("PYTHONPATH", "")))}
for act in sys.argv[2:]:
    with ChildCgroup() as cgroup:
        if act == "die":
            print(cgroup.procs, flush=True)
            os.kill(os.getpid(), 9)
        try:
            with Child("a_child", json.dumps({"act": act}).encode(), directory, environment, cgroup) as child:
                records = [record.payload for record in iter_records(child, lambda: None)]
        except PreflightError as error:
            records = [type(error).__name__, error.message]
        procs, limit, peak = cgroup.procs, cgroup.limit_bytes(), cgroup.peak_bytes()
    print(json.dumps({"records": records, "procs": procs and str(procs), "limit": limit, "peak": peak}), flush=True)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """Yield a new, empty cgroup of v1 below this process's own."""
    with new_cgroup("memory") as directory:
        yield directory


def supervise(
    group: Path, directory: Path, *acts: str, before: str = "", shares: int = 1, shared: int = 0
) -> "subprocess.CompletedProcess[str]":
    """Run a supervisor in one of `shares` of `group`, with a child for each act, after the shell command `before`.

    `shared` bytes of each child are charged to its fork server.
    """
    program = A_SUPERVISOR.replace("ChildCgroup()", f"ChildCgroup(shares={shares}, shared={shared})")
    (directory / "a_child.py").write_text(A_CHILD)
    return subprocess.run(
        ["sh", "-c", f'echo $$ > "$0" && {before or ":"} && exec "$@"', str(group / "cgroup.procs"),  # noqa: S607
         sys.executable, "-c", program, str(directory), *acts],
        stdout=subprocess.PIPE, text=True, check=False, timeout=120,
    )  # fmt: skip


def limit(group: Path, size: int) -> None:
    """Limit the memory of a cgroup, with its swap where that is counted."""
    (group / "memory.limit_in_bytes").write_text(str(size))
    if (group / "memory.memsw.limit_in_bytes").exists():
        (group / "memory.memsw.limit_in_bytes").write_text(str(size))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("act", ["allocate", "allocate in a child"])
def test_a_child_without_memory_is_killed_alone(group: Path, tmp_path: Path, act: str) -> None:
    """Killed itself, or failed for lack of its own child; the message has limit, peak and advice."""
    limit(group, 200 * MIB)
    ended = supervise(group, tmp_path, act, "report cgroup")
    assert ended.returncode == 0
    first, second = (json.loads(line) for line in ended.stdout.splitlines())
    kind, message = first["records"]
    assert kind == "OutOfMemory"
    assert message.startswith("the a_child process was killed by the out-of-memory killer (limit 180 MiB, peak ")
    assert message.endswith("; use a smaller batch_size or give the container more memory")
    assert 100 * MIB < first["peak"] <= 180 * MIB
    assert second["records"][0].keys() == {"cgroup"}


def test_what_a_child_shares_with_its_fork_server_is_in_both_figures(group: Path, tmp_path: Path) -> None:
    """Else 512 MiB would read as 161 where torch takes the rest."""
    limit(group, 200 * MIB)
    ended = supervise(group, tmp_path, "allocate", shared=50 * MIB)
    (killed,) = (json.loads(line) for line in ended.stdout.splitlines())
    assert "(limit 180 MiB, peak " in killed["records"][1]
    assert 150 * MIB < killed["peak"] <= 180 * MIB


@pytest.mark.parametrize(
    ("own", "shares", "left"),
    [(500 * MIB, 1, 450 * MIB), (2048 * MIB, 1, (2048 - 64) * MIB), (None, 1, None), (1000 * MIB, 2, 450 * MIB)],
    ids=["small", "large", "none", "share"],
)
def test_a_child_has_its_own_cgroup(
    group: Path, tmp_path: Path, own: int | None, shares: int, left: int | None
) -> None:
    """Below the supervisor's, which keeps a tenth of its limit, 64 MiB at most; it is removed afterwards."""
    if own is not None:
        limit(group, own)
    ended = supervise(group, tmp_path, "report cgroup", shares=shares)
    (report,) = (json.loads(line) for line in ended.stdout.splitlines())
    cgroup = Path(report["procs"]).parent
    assert cgroup.parent == group
    assert f"/{group.name}/{cgroup.name}\n" in report["records"][0]["cgroup"]
    assert (report["limit"], cgroup.exists()) == (left, False)
    assert report["peak"] > 0


def test_the_cgroup_of_a_killed_supervisor_is_removed_by_the_next(group: Path, tmp_path: Path) -> None:
    ended = supervise(group, tmp_path, "die")
    left = Path(ended.stdout.strip()).parent
    assert (ended.returncode, left.is_dir()) == (-9, True)
    supervise(group, tmp_path, "report cgroup")
    assert not left.exists()


def test_a_kill_is_reported_where_cgroups_are_read_only(group: Path, tmp_path: Path) -> None:
    """As in most containers: it is counted in the supervisor's cgroup."""
    limit(group, 200 * MIB)
    # The cgroup file system is read-only in a new mount namespace.
    mount = next(mount.point for mount in cgroup_mounts(Files(Path("/"))) if "memory" in mount.controllers)
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:  # noqa: S607
        pytest.skip("a mount namespace cannot be made here")
    read_only = f'exec unshare --mount sh -c \'mount -o remount,bind,ro {mount} && exec "$@"\' sh "$@"'
    ended = supervise(group, tmp_path, "allocate", before=read_only)
    (report,) = (json.loads(line) for line in ended.stdout.splitlines())
    kind, message = report["records"]
    assert (kind, report["procs"]) == ("OutOfMemory", None)
    assert "by the out-of-memory killer (limit 200 MiB); use a smaller" in message
