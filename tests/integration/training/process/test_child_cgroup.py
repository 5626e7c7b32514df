"""Children that are killed for memory, in real cgroups: they are taken, they are named, and nobody else is hurt."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from groups import new_cgroup

from training.system.cgroups import Files, cgroup_mounts

MIB = 1 << 20

A_CHILD = """
import subprocess, sys
from pydantic import JsonValue, TypeAdapter
from training.process.child import run_child

EAT = "eaten = []\\nwhile True: eaten.append(bytearray(b'x' * (8 << 20)))"

def body(request, journal, should_stop):
    match request["act"]:
        case "eat":
            exec(EAT)
        case "have another eat":
            subprocess.run([sys.executable, "-c", EAT], check=True)
        case "say where":
            journal.write("done", {"cgroup": open("/proc/self/cgroup").read()}, durable=True)

run_child(TypeAdapter(dict[str, JsonValue]), body)
"""

A_SUPERVISOR = """
import json, os, sys
from pathlib import Path
from training.errors import PreflightError
from training.process.oom import Enclosure
from training.process.child import Child, follow

directory = Path(sys.argv[1])
environment = {**os.environ, "PYTHONPATH": str(directory)}
for act in sys.argv[2:]:
    with Enclosure() as enclosure:
        if act == "die":
            print(enclosure.procs, flush=True)
            os.kill(os.getpid(), 9)
        try:
            with Child("a_child", json.dumps({"act": act}).encode(), directory, environment, enclosure) as child:
                said = [record.payload for record in follow(child, lambda: None)]
        except PreflightError as error:
            said = [type(error).__name__, error.message]
        procs, limit, peak = enclosure.procs, enclosure.limit_bytes(), enclosure.peak_bytes()
    print(json.dumps({"said": said, "procs": procs and str(procs), "limit": limit, "peak": peak}), flush=True)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """Yield a new, empty cgroup of v1 below this process's own."""
    with new_cgroup("memory") as directory:
        yield directory


def supervise(group: Path, directory: Path, *acts: str, before: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a supervisor in `group`, which runs a child for each act; `before` is a shell command that comes first."""
    (directory / "a_child.py").write_text(A_CHILD)
    return subprocess.run(
        ["sh", "-c", f'echo $$ > "$0" && {before or ":"} && exec "$@"', str(group / "cgroup.procs"),  # noqa: S607
         sys.executable, "-c", A_SUPERVISOR, str(directory), *acts],
        stdout=subprocess.PIPE, text=True, check=False, timeout=120,
    )  # fmt: skip


def limit(group: Path, size: int) -> None:
    """Give a cgroup a limit, its swap included where that is counted."""
    (group / "memory.limit_in_bytes").write_text(str(size))
    if (group / "memory.memsw.limit_in_bytes").exists():
        (group / "memory.memsw.limit_in_bytes").write_text(str(size))


@pytest.mark.parametrize("act", ["eat", "have another eat"])
def test_a_child_that_eats_all_memory_is_named(group: Path, tmp_path: Path, act: str) -> None:
    """The child is killed, or fails as a process of its own is; the supervisor lives, and says limit, peak, advice."""
    limit(group, 200 * MIB)
    ended = supervise(group, tmp_path, act, "say where")
    assert ended.returncode == 0
    first, second = (json.loads(line) for line in ended.stdout.splitlines())
    kind, message = first["said"]
    assert kind == "OutOfMemory"
    assert message.startswith(
        "the a_child process was killed (signal 9) because memory ran out (it may use 180 MiB and had at its peak "
    )
    assert message.endswith("; use a smaller batch_size or give the container more memory")
    assert 100 * MIB < first["peak"] <= 180 * MIB
    assert second["said"][0].keys() == {"cgroup"}


def test_a_child_runs_in_a_cgroup_of_its_own(group: Path, tmp_path: Path) -> None:
    """Beneath that of its supervisor, with a tenth less; afterwards it is gone."""
    limit(group, 500 * MIB)
    (told,) = (json.loads(line) for line in supervise(group, tmp_path, "say where").stdout.splitlines())
    own = Path(told["procs"]).parent
    assert own.parent == group
    assert f"/{group.name}/{own.name}\n" in told["said"][0]["cgroup"]
    assert (told["limit"], own.exists()) == (450 * MIB, False)


def test_a_large_limit_leaves_64_mib_to_the_supervisor(group: Path, tmp_path: Path) -> None:
    """A tenth would be more than it needs."""
    limit(group, 2048 * MIB)
    (told,) = (json.loads(line) for line in supervise(group, tmp_path, "say where").stdout.splitlines())
    assert told["limit"] == (2048 - 64) * MIB


def test_without_a_limit_a_child_has_none(group: Path, tmp_path: Path) -> None:
    """Its kills and its peak can be told from others' all the same."""
    (told,) = (json.loads(line) for line in supervise(group, tmp_path, "say where").stdout.splitlines())
    assert (told["limit"], Path(told["procs"]).parent.parent) == (None, group)
    assert told["peak"] > 0


def test_what_a_killed_supervisor_left_is_removed_by_the_next(group: Path, tmp_path: Path) -> None:
    """Killed within its enclosure, it cannot tidy up."""
    ended = supervise(group, tmp_path, "die")
    left = Path(ended.stdout.strip()).parent
    assert (ended.returncode, left.is_dir()) == (-9, True)
    supervise(group, tmp_path, "say where")
    assert not left.exists()


def test_where_cgroups_cannot_be_written_a_kill_is_named_too(group: Path, tmp_path: Path) -> None:
    """As in most containers: the child is the first victim in its supervisor's cgroup, whose counter tells."""
    limit(group, 200 * MIB)
    # In a mount namespace of its own, the cgroup file system is read-only.
    mount = next(mount.point for mount in cgroup_mounts(Files(Path("/"))) if "memory" in mount.controllers)
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:  # noqa: S607
        pytest.skip("a mount namespace cannot be made here")
    read_only = f'exec unshare --mount sh -c \'mount -o remount,bind,ro {mount} && exec "$@"\' sh "$@"'
    ended = supervise(group, tmp_path, "eat", before=read_only)
    (told,) = (json.loads(line) for line in ended.stdout.splitlines())
    kind, message = told["said"]
    assert (kind, told["procs"]) == ("OutOfMemory", None)
    assert "because memory ran out (it may use 200 MiB); use a smaller" in message
