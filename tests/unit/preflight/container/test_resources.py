"""Detection of processors and memory, on made-up file trees and in a real cgroup."""

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.files.cgroups import remove_cgroup

from preflight.container.resources import MemoryUse, Resources, Share, binding_quota, detect, process_tree_bytes

MIB = 1 << 20
GIB = 1 << 30
EIGHT = frozenset(range(8))
SENTINEL = 9223372036854771712
"""What cgroup v1 shows for no memory limit: the largest multiple of a page in 63 bits."""

CGROUP = "/sys/fs/cgroup"


class Tree:
    """A made-up system: its root, and writers for the files that detection reads."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, content: str | bytes) -> "Tree":
        target = self.at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def mount(self, kind: str, point: str, *, root: str = "/", options: str = "rw") -> "Tree":
        """Append a mount; `root` and `point` as mountinfo spells them."""
        mountinfo = self.at("/proc/self/mountinfo")
        mountinfo.parent.mkdir(parents=True, exist_ok=True)
        with mountinfo.open("a") as file:
            file.write(f"41 31 0:38 {root} {point} rw,relatime shared:9 - {kind} {kind} {options}\n")
        return self

    def v1(self, controllers: str, *, root: str = "/", point: str | None = None) -> "Tree":
        return self.mount("cgroup", point or f"{CGROUP}/{controllers}", root=root, options=f"rw,{controllers}")

    def v2(self, *, root: str = "/", point: str = CGROUP) -> "Tree":
        return self.mount("cgroup2", point, root=root, options="rw,nsdelegate")

    def own(self, *lines: str) -> "Tree":
        return self.write("/proc/self/cgroup", "".join(f"{line}\n" for line in lines))

    def detect(self, affinity: frozenset[int] = EIGHT, mem_total: int = 64 * GIB) -> Resources:
        return detect(self.root, affinity=affinity, mem_total=mem_total)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_v2_limits_are_found_with_their_files(tree: Tree) -> None:
    """cpu.max and memory.max of the own cgroup decide, and are named as the sources."""
    tree.v2().own("0::/app").write(f"{CGROUP}/app/cpu.max", "200000 100000\n")
    found = tree.write(f"{CGROUP}/app/memory.max", f"{GIB}\n").detect()
    assert (found.cores, found.quota, found.memory_bytes) == (2, 2.0, GIB)
    assert found.cores_source == str(tree.at(f"{CGROUP}/app/cpu.max"))
    assert found.memory_source == str(tree.at(f"{CGROUP}/app/memory.max"))
    assert found.warnings == ()


def test_v1_limits_are_found_with_their_files(tree: Tree) -> None:
    """cfs_quota / cfs_period and limit_in_bytes decide, also under a joint cpu,cpuacct mount."""
    tree.v1("cpu,cpuacct").v1("memory").mount("cgroup", f"{CGROUP}/systemd", options="rw,xattr,name=systemd")
    tree.own("9:name=systemd:/elsewhere", "4:memory:/app", "1:cpu,cpuacct:/app", "0::/elsewhere")
    tree.write(f"{CGROUP}/cpu,cpuacct/app/cpu.cfs_quota_us", "150000\n")
    tree.write(f"{CGROUP}/cpu,cpuacct/app/cpu.cfs_period_us", "50000\n")
    found = tree.write(f"{CGROUP}/memory/app/memory.limit_in_bytes", f"{GIB}\n").detect()
    assert (found.cores, found.quota, found.memory_bytes) == (3, 3.0, GIB)
    assert found.cores_source == str(tree.at(f"{CGROUP}/cpu,cpuacct/app/cpu.cfs_quota_us"))
    assert found.memory_source == str(tree.at(f"{CGROUP}/memory/app/memory.limit_in_bytes"))
    assert found.warnings == ()


@pytest.mark.parametrize(("processors", "binds"), [(1, None), (2, 1.5), (8, 1.5)])
def test_the_quota_that_binds_comes_with_its_period(tree: Tree, processors: int, binds: float | None) -> None:
    """That of the level whose quota is the least; one of more than the processors binds nothing."""
    tree.v2().own("0::/a/b").write(f"{CGROUP}/a/cpu.max", "15000 10000").write(
        f"{CGROUP}/a/b/cpu.max", "1750000 1000000"
    )
    found = binding_quota(tree.root, affinity=frozenset(range(processors)))
    assert (found is None) == (binds is None)
    assert found is None or (float(found.processors), found.period_s) == (binds, 0.01)


def test_hybrid_is_decided_per_controller(tree: Tree) -> None:
    """With cpu in v1 and memory in v2, each is read where it lives, and v1's cpu beats v2's."""
    tree.v2(point=f"{CGROUP}/unified").v1("cpu").own("1:cpu:/one", "0::/two")
    tree.write(f"{CGROUP}/cpu/one/cpu.cfs_quota_us", "300000").write(f"{CGROUP}/cpu/one/cpu.cfs_period_us", "100000")
    tree.write(f"{CGROUP}/unified/two/cpu.max", "100000 100000")
    found = tree.write(f"{CGROUP}/unified/two/memory.max", str(GIB)).detect()
    assert (found.quota, found.memory_bytes) == (3.0, GIB)


def test_siblings_and_descendants_do_not_count(tree: Tree) -> None:
    """Only the way from the own cgroup to the mountpoint is walked."""
    tree.v2().own("0::/a").write(f"{CGROUP}/b/cpu.max", "50000 100000")
    assert tree.write(f"{CGROUP}/a/child/cpu.max", "50000 100000").detect().quota is None


def test_a_mountpoint_never_leads_out_of_the_root(tree: Tree) -> None:
    """Detection reads beneath `root` only, whatever mountinfo claims."""
    tree.write("/cpu.max", "100000")
    assert Tree(tree.root / "inner").v2(point="/..").own("0::/").detect().quota is None


@pytest.mark.parametrize("mount_root", ["/", "/docker/abc"])
def test_in_a_cgroup_namespace_the_mountpoint_is_the_own_cgroup(tree: Tree, mount_root: str) -> None:
    """Path "/" means the mountpoint, whatever the mount's root, and nothing is odd about it."""
    found = tree.v2(root=mount_root).own("0::/").write(f"{CGROUP}/cpu.max", "100000 100000").detect()
    assert (found.quota, found.warnings) == (1.0, ())


@pytest.mark.parametrize("path", ["/..", "/../../other", "/../../../../../etc", None])
def test_an_own_cgroup_out_of_sight_is_read_at_the_mountpoint(tree: Tree, path: str | None) -> None:
    """Outside the namespace, or without /proc/self/cgroup: the mountpoint's limits count and a warning says so."""
    tree.v2().write(f"{CGROUP}/cpu.max", "100000 100000")
    tree.write("/sys/fs/cpu.max", "10000 100000").write("/other/cpu.max", "10000 100000")
    if path is not None:
        tree.own(f"0::{path}")
    found = tree.detect()
    assert found.quota == 1.0
    assert any((path or "proc/self/cgroup") in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("own", "limited", "warned"),
    [("/docker/abc", "", False), ("/docker/abc (deleted)", "", False), ("/docker/abc/worker", "/worker", False),
     ("/docker/abcd", "", True), ("/docker", "", True)],
)  # fmt: skip
def test_a_bind_mounted_cgroup_is_entered_at_its_root(tree: Tree, own: str, limited: str, warned: bool) -> None:
    """A container's mount shows /docker/abc: what follows it is appended, and names compare whole."""
    tree.v2(root="/docker/abc").own(f"0::{own}").write(f"{CGROUP}{limited}/memory.max", str(GIB))
    found = tree.detect()
    assert found.memory_bytes == GIB
    assert found.memory_source == str(tree.at(f"{CGROUP}{limited}/memory.max"))
    assert bool(found.warnings) == warned


def test_of_several_mounts_the_closest_is_read(tree: Tree) -> None:
    """The mount with the longest matching root wins; one that matches only part of a name does not."""
    tree.v2(root="/a/b", point="/near").v2(root="/a/bc", point="/other").v2(root="/", point="/far").own("0::/a/bcd")
    tree.write("/near/cpu.max", "100000").write("/other/cpu.max", "200000")
    assert tree.write("/far/a/bcd/cpu.max", "300000").detect().quota == 3.0
    assert tree.own("0::/a/bc").detect().quota == 2.0
    assert tree.own("0::/a/b/x").detect().quota == 1.0


def test_a_later_mount_hides_an_earlier_one(tree: Tree) -> None:
    """Two mounts on one point: the files seen there are the second one's."""
    tree.v2(root="/").v2(root="/docker/abc").own("0::/docker/abc/x").write(f"{CGROUP}/x/cpu.max", "100000")
    assert tree.detect().quota == 1.0


def test_missing_levels_are_no_limit(tree: Tree) -> None:
    """Where the joined directory does not exist, the walk goes on upward, without a warning."""
    found = tree.v2().own("0::/gone/too (deleted)").write(f"{CGROUP}/memory.max", str(GIB)).detect()
    assert (found.memory_bytes, found.quota, found.warnings) == (GIB, None, ())


def test_unlimited_everywhere(tree: Tree) -> None:
    """`max`, -1 and v1's sentinel are no limits: affinity and MemTotal decide."""
    tree.v2().own("0::/").write(f"{CGROUP}/cpu.max", "max 100000\n").write(f"{CGROUP}/memory.max", "max\n")
    for_v2 = tree.write(f"{CGROUP}/memory.high", "max\n").detect()
    tree.v1("cpu").v1("memory").own("4:memory:/", "1:cpu:/").write(f"{CGROUP}/cpu/cpu.cfs_quota_us", "-1\n")
    tree.write(f"{CGROUP}/cpu/cpu.cfs_period_us", "100000\n")
    tree.write(f"{CGROUP}/memory/memory.stat", f"hierarchical_memory_limit {SENTINEL}\n")
    for_v1 = tree.write(f"{CGROUP}/memory/memory.limit_in_bytes", f"{SENTINEL}\n").detect()
    assert for_v1 == for_v2
    assert (for_v1.cores, for_v1.quota, for_v1.memory_bytes) == (8, None, 64 * GIB)
    assert (for_v1.cores_source, for_v1.memory_source, for_v1.warnings) == ("affinity", "MemTotal", ())


@pytest.mark.parametrize("limit", [64 * GIB, 64 * GIB + 1, SENTINEL])
def test_a_limit_of_memtotal_or_more_is_none(tree: Tree, limit: int) -> None:
    """What cannot bind is not named as the source."""
    found = tree.v2().own("0::/").write(f"{CGROUP}/memory.max", str(limit)).detect()
    assert (found.memory_bytes, found.memory_source) == (64 * GIB, "MemTotal")


@pytest.mark.parametrize(
    ("cpu_max", "quota", "cores"),
    [("50000 100000", 0.5, 1), ("99998 33333", 99998 / 33333, 2), ("300000", 3.0, 3), ("1600000 100000", 16.0, 8),
     ("29999999999999999999 10000000000000000000", 3.0, 2)],  # a hair below 3, which rounds to 3 as a float
)  # fmt: skip
def test_the_quota_stays_a_fraction_and_its_floor_is_exact(tree: Tree, cpu_max: str, quota: float, cores: int) -> None:
    """The quota is Q/P; cores is its floor in integers, at least 1, at most the affinity."""
    found = tree.v2().own("0::/").write(f"{CGROUP}/cpu.max", cpu_max).detect()
    assert (found.quota, found.cores) == (quota, cores)
    assert (found.cores_source == "affinity") == (quota >= 8)


def test_an_affinity_smaller_than_the_quota_decides(tree: Tree) -> None:
    """The affinity, which a cpuset has already narrowed, bounds the cores; the quota is still told."""
    found = tree.v2().own("0::/").write(f"{CGROUP}/cpu.max", "400000 100000").detect(frozenset({3, 5}))
    assert (found.cores, found.quota, found.affinity) == (2, 4.0, frozenset({3, 5}))
    assert found.cores_source == "affinity"


def test_memory_high_counts_as_a_limit(tree: Tree) -> None:
    """Above memory.high the kernel throttles, so the budget ends there."""
    tree.v2().own("0::/a").write(f"{CGROUP}/a/memory.max", str(2 * GIB))
    found = tree.write(f"{CGROUP}/memory.high", str(GIB)).detect()
    assert (found.memory_bytes, found.memory_source) == (GIB, str(tree.at(f"{CGROUP}/memory.high")))


def test_a_hidden_ancestor_shows_in_memory_stat(tree: Tree) -> None:
    """A v1 leaf that reads the sentinel is still bound by hierarchical_memory_limit."""
    tree.v1("memory", root="/p/leaf").own("4:memory:/p/leaf").write(
        f"{CGROUP}/memory/memory.limit_in_bytes", str(SENTINEL)
    )
    tree.write(f"{CGROUP}/memory/memory.stat", f"cache 1\nhierarchical_memory_limit {200 * MIB}\ntotal_rss 2\n")
    found = tree.detect()
    assert found.memory_bytes == 200 * MIB
    assert found.memory_source == str(tree.at(f"{CGROUP}/memory/memory.stat"))


def test_the_limit_itself_is_named_rather_than_its_echo(tree: Tree) -> None:
    """Where the ancestor is visible, its limit file is the source, not the leaf's memory.stat."""
    tree.v1("memory").own("4:memory:/p/leaf").write(f"{CGROUP}/memory/p/memory.limit_in_bytes", str(GIB))
    tree.write(f"{CGROUP}/memory/p/leaf/memory.stat", f"hierarchical_memory_limit {GIB}\n")
    assert tree.detect().memory_source == str(tree.at(f"{CGROUP}/memory/p/memory.limit_in_bytes"))


@pytest.mark.parametrize(
    ("root", "point", "path", "directory"),
    [
        pytest.param(r"/my\040pods/\134x", r"/cg\040\303\244\011", r"/my pods/\x/a b", "/cg ä\t/a b", id="escapes"),
        pytest.param("/", CGROUP, "/cri:abc:def", f"{CGROUP}/cri:abc:def", id="colons"),
    ],
)
def test_any_name_of_a_cgroup_is_read(tree: Tree, root: str, point: str, path: str, directory: str) -> None:
    """mountinfo writes spaces, tabs, backslashes and bytes above 127 in octal; two colons separate /proc's fields."""
    found = tree.v2(root=root, point=point).own(f"0::{path}").write(f"{directory}/cpu.max", "100000 100000").detect()
    assert (found.quota, found.warnings) == (1.0, ())


def test_a_v1_working_set_leaves_out_the_page_cache(tree: Tree) -> None:
    """v1: usage - total_inactive_file - total_active_file, of the own cgroup; headroom is what is left."""
    tree.v1("memory").own("4:memory:/a").write(f"{CGROUP}/memory/a/memory.limit_in_bytes", "1000")
    tree.write(f"{CGROUP}/memory/a/memory.usage_in_bytes", "700\n")
    tree.write(f"{CGROUP}/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 50\n")
    found = tree.detect()
    assert (found.working_set_bytes, found.headroom_bytes) == (550, 450)


def test_a_v2_working_set_leaves_out_the_page_cache(tree: Tree) -> None:
    """v2: current - inactive_file - active_file; a set above the budget leaves no headroom, not a debt."""
    tree.v2().own("0::/a").write(f"{CGROUP}/a/memory.current", "7000\n")
    tree.write(f"{CGROUP}/a/memory.stat", "anon 6\ninactive_file 1000\nactive_file 500\n")
    found = tree.detect()
    assert (found.working_set_bytes, found.headroom_bytes) == (5500, 64 * GIB - 5500)
    assert tree.write(f"{CGROUP}/a/memory.max", "4096").detect().headroom_bytes == 0
    assert tree.write(f"{CGROUP}/a/memory.current", "1000").detect().working_set_bytes == 0


def test_without_a_working_set_the_headroom_is_the_budget(tree: Tree) -> None:
    """An unreadable working set is None, not 0, and takes nothing off the budget."""
    found = tree.v2().own("0::/").write(f"{CGROUP}/memory.max", "4096").detect()
    assert (found.working_set_bytes, found.headroom_bytes) == (None, 4096)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"lots", b"-5", b"1_000", b"\xff\xfe\x00", "٣".encode(), b"9" * 5000],
)
def test_garbage_is_no_limit_and_a_warning(tree: Tree, garbage: bytes) -> None:
    """A file that holds no sensible limit is skipped and named; other levels still count."""
    tree.v2().own("0::/a").write(f"{CGROUP}/cpu.max", "200000 100000").write(f"{CGROUP}/memory.max", str(GIB))
    tree.write(f"{CGROUP}/a/cpu.max", garbage).write(f"{CGROUP}/a/memory.max", garbage)
    found = tree.detect()
    assert (found.quota, found.memory_bytes) == (2.0, GIB)
    files = {str(tree.at(f"{CGROUP}/a/{name}")) for name in ("cpu.max", "memory.max")}
    assert {warning.partition(":")[0] for warning in found.warnings} == files


@pytest.mark.parametrize("period", ["0", "x", "9" * 400])
def test_an_absurd_period_is_no_quota_and_a_warning(tree: Tree, period: str) -> None:
    """Nothing is divided by a period that is not a positive number."""
    tree.v1("cpu").v2(point="/v2").own("1:cpu:/", "0::/").write(f"{CGROUP}/cpu/cpu.cfs_quota_us", "100000")
    found = tree.write(f"{CGROUP}/cpu/cpu.cfs_period_us", period).detect()
    assert found.quota is None
    assert len(found.warnings) == 1


def test_garbage_in_memory_stat_is_a_warning(tree: Tree) -> None:
    """Lines of memory.stat that are no entries are said to be ignored; the others are read."""
    tree.v1("memory").own("4:memory:/").write(
        f"{CGROUP}/memory/memory.stat", b"\xff\xff\nhierarchical_memory_limit 4096\n"
    )
    found = tree.v2(point="/v2").own("4:memory:/", "0::/").detect()
    assert found.memory_bytes == 4096
    assert len(found.warnings) == 1


def test_unreadable_files_are_warnings(tree: Tree) -> None:
    """A directory or an endless symbolic link in a file's place is reported, not raised."""
    tree.v2().own("0::/").at(f"{CGROUP}/cpu.max").mkdir(parents=True)
    tree.at(f"{CGROUP}/memory.max").symlink_to("memory.max")
    found = tree.detect()
    assert (found.quota, found.memory_source) == (None, "MemTotal")
    assert len(found.warnings) == 2


def test_endless_files_and_paths_are_bounded(tree: Tree) -> None:
    """Neither a file without an end nor a path longer than the kernel's is followed to its end."""
    tree.v2().at(CGROUP).mkdir(parents=True)
    tree.at(f"{CGROUP}/cpu.max").symlink_to("/dev/zero")
    started = time.monotonic()
    found = tree.own("0::" + "/a" * 400_000).detect()
    assert time.monotonic() - started < 10
    assert any("1 MiB" in warning for warning in found.warnings)
    assert tree.own("0::" + "/a" * 2000).detect().quota is None


def test_names_that_are_not_utf8_can_be_logged(tree: Tree) -> None:
    """A source is text that any log can encode, even where a cgroup's name is not."""
    tree.v2().write("/proc/self/cgroup", b"0::/\xff\n")
    directory = os.fsencode(tree.at(CGROUP)) + b"/\xff"
    Path(os.fsdecode(directory)).mkdir(parents=True)
    Path(os.fsdecode(directory + b"/cpu.max")).write_text("100000")
    found = tree.detect()
    assert found.quota == 1.0
    assert found.cores_source.encode().endswith(rb"/\xff/cpu.max")


def test_without_any_files_the_machine_is_detected(tree: Tree) -> None:
    """In an empty tree the affinity and the kernel's memory size decide, and warnings say what is missing."""
    found = detect(tree.root, affinity=EIGHT)
    assert (found.cores, found.quota, found.cores_source) == (8, None, "affinity")
    assert found.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert any("mountinfo" in warning for warning in found.warnings)
    assert any("meminfo" in warning for warning in found.warnings)


def test_memtotal_is_read_beneath_the_root(tree: Tree) -> None:
    """MemTotal of the tree's own /proc/meminfo, in KiB, is the default."""
    tree.write("/proc/meminfo", "MemTotal:       24684084 kB\nMemFree:  1 kB\nHugePages_Total:  0\n")
    found = detect(tree.v2().own("0::/").root)
    assert (found.memory_bytes, found.warnings) == (24684084 * 1024, ())
    assert found.affinity == frozenset(os.sched_getaffinity(0))


# Generated trees. The expectation is built along with the tree, never read back from it.

NAME = st.text("ab:.- \\ä", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
MEMORY = st.none() | st.integers(1, 256 * GIB)
QUOTA = st.none() | st.tuples(st.integers(1, 2_000_000), st.integers(1, 1_000_000))


class Level(NamedTuple):
    name: str
    quota: tuple[int, int] | None
    memory: int | None
    high: int | None


LEVELS = st.lists(st.builds(Level, NAME, QUOTA, MEMORY, MEMORY), min_size=1, max_size=5)


@given(
    levels=LEVELS, hidden=st.integers(0, 4), cpus=st.integers(1, 64), version=st.sampled_from([1, 2]),
    absent=st.booleans(),  # whether "no limit" is left out or spelt out
)  # fmt: skip
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_nesting_gives_the_least_of_all_limits(
    levels: list[Level], hidden: int, cpus: int, version: int, absent: bool
) -> None:
    """For generated nestings, mount roots and limits, v1 and v2 give the independently computed minimum."""
    # Above the mount, limits are invisible, but for the memory in v1's hierarchical_memory_limit.
    hidden = min(hidden, len(levels) - 1)
    path = "".join(f"/{level.name}" for level in levels)
    visible = levels[hidden:]
    with tempfile.TemporaryDirectory() as directory:
        tree = Tree(Path(directory))
        mount_root = "".join(f"/{level.name}" for level in levels[: hidden + 1])
        mount_root = mount_root.replace("\\", "\\134").replace(" ", "\\040")
        if version == 2:
            tree.v2(root=mount_root).own(f"0::{path}")
        else:
            tree.v1("cpu", root=mount_root).v1("memory", root=mount_root).own(f"2:cpu:{path}", f"1:memory:{path}")
        below = ""
        for depth, level in enumerate(visible):
            below += f"/{level.name}" if depth else ""
            if version == 2:
                if level.quota or not absent:
                    tree.write(f"{CGROUP}{below}/cpu.max", "{} {}\n".format(*level.quota or ("max", 100_000)))
                for name, limit in (("max", level.memory), ("high", level.high)):
                    if limit or not absent:
                        tree.write(f"{CGROUP}{below}/memory.{name}", f"{limit or 'max'}\n")
            else:
                quota, period = level.quota or (-1, 100_000)
                if level.quota or not absent:
                    tree.write(f"{CGROUP}/cpu{below}/cpu.cfs_quota_us", f"{quota}\n")
                    tree.write(f"{CGROUP}/cpu{below}/cpu.cfs_period_us", f"{period}\n")
                own = level.memory or SENTINEL
                above = [known.memory or SENTINEL for known in levels[: hidden + depth + 1]]
                tree.write(f"{CGROUP}/memory{below}/memory.limit_in_bytes", f"{own}\n")
                tree.write(f"{CGROUP}/memory{below}/memory.stat", f"hierarchical_memory_limit {min(above)}\n")
        found = tree.detect(frozenset(range(cpus)))

    ratios = [level.quota for level in visible if level.quota]
    counted = [level.memory for level in (visible if version == 2 else levels)]
    counted += [level.high for level in visible if version == 2]
    assert found.quota == min((quota / period for quota, period in ratios), default=None)
    assert found.cores == max(1, min([cpus, *(quota // period for quota, period in ratios)]))
    assert found.memory_bytes == min([64 * GIB, *(limit for limit in counted if limit)])
    assert found.warnings == ()


FILES = (
    "proc/self/mountinfo",
    "proc/self/cgroup",
    "proc/meminfo",
    *(f"cg/cpu.{name}" for name in ("max", "cfs_quota_us", "cfs_period_us")),
    *(f"cg/memory.{name}" for name in ("max", "high", "current", "stat", "limit_in_bytes", "usage_in_bytes")),
)
FRAGMENTS = st.sampled_from(
    [
        *(b"max", b"0", b"-1", b"1", b"100000", b"9" * 30, b"MemTotal: ", b"hierarchical_memory_limit "),
        *(b" ", b"\n", b":", b"/", b"..", b" - ", b" kB\n", b"\\040", b"\0", b"\xff"),
        *(b"0::/", b"1:cpu,memory:/", b"inactive_file 1\nactive_file 1\n"),
        *(b"1 1 0:1 / /cg rw - cgroup2 x rw\n", b"1 1 0:1 / /cg rw - cgroup x rw,cpu,memory\n"),
    ]
)
CONTENT = st.binary(max_size=60) | st.lists(FRAGMENTS, max_size=8).map(b"".join)


@given(contents=st.dictionaries(st.sampled_from(FILES), CONTENT), mounted=st.sampled_from(["", "cgroup", "cgroup2"]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_content_of_a_file_raises(contents: dict[str, bytes], mounted: str) -> None:
    """Whatever the files hold, there is a core, a budget within MemTotal, and text that can be logged."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Tree(Path(directory))
        for path, content in contents.items():
            tree.write(path, content)
        if mounted:
            tree.mount(mounted, "/cg", options="rw,cpu,memory")
        found = tree.detect(mem_total=GIB)
        assert detect(tree.root).memory_bytes > 0
    assert 1 <= found.cores <= 8
    assert 0 < found.memory_bytes <= GIB
    assert 0 <= found.headroom_bytes <= found.memory_bytes
    assert found.quota is None or found.quota > 0
    "".join((found.cores_source, found.memory_source, *found.warnings)).encode()


def test_quota_and_memory_are_divided_into_shares(tree: Tree) -> None:
    """The processors of a share are those that the process may use."""
    tree.v2().own("0::/app").write(f"{CGROUP}/app/cpu.max", "500000 100000\n")
    tree.write(f"{CGROUP}/app/memory.max", f"{4 * GIB}\n")
    found = detect(tree.root, affinity=frozenset(range(4)), mem_total=64 * GIB, shares=2)
    assert (found.cores, found.quota, found.memory_bytes, found.shares) == (2, 2.5, 2 * GIB, 2)
    assert detect(tree.root, affinity=frozenset({0, 1}), mem_total=64 * GIB, shares=2).cores_source == "affinity"


@pytest.mark.parametrize(
    ("others", "headroom"), [(0, GIB - 30 * MIB), (512 * MIB, GIB - 30 * MIB), (GIB + 100 * MIB, GIB - 130 * MIB)]
)
def test_the_headroom_of_a_share(tree: Tree, others: int, headroom: int) -> None:
    """What its processes left of it, or less where others took more than theirs."""
    tree.v2().own("0::/app").write(f"{CGROUP}/app/memory.max", f"{2 * GIB}\n")
    tree.write(f"{CGROUP}/app/memory.current", f"{others + 30 * MIB}\n")
    tree.write(f"{CGROUP}/app/memory.stat", "inactive_file 0\nactive_file 0\n")
    own = os.getpid()
    tree.write(f"/proc/{own}/task/{own}/children", "70 71 ")
    for process, used in ((own, 10), (70, 20)):  # 71 has just ended
        status = f"VmRSS:\t9999999 kB\nRssAnon:\t{(used - 1) << 10} kB\nRssFile:\t999999 kB\nRssShmem:\t{1 << 10} kB\n"
        tree.write(f"/proc/{process}/status", status)
    assert detect(tree.root, affinity=EIGHT, mem_total=64 * GIB, shares=2).headroom_bytes == headroom


# The real machine.


def test_the_memory_of_a_share_is_that_of_its_processes() -> None:
    before = process_tree_bytes(os.getpid())
    block = bytearray(b"x" * (64 * MIB))
    assert process_tree_bytes(os.getpid()) >= before + len(block) // 2
    use = MemoryUse(share=Share(of=2, memory_bytes=GIB))
    assert use.limit == GIB
    assert (use.bytes() or 0) >= before + len(block) // 2  # of the parent's tree, whose other processes come and go


def test_detection_on_this_machine() -> None:
    """Here and now there are a core, a budget of at most MemTotal, and no warnings about sources unseen."""
    found = detect()
    assert 1 <= found.cores <= len(os.sched_getaffinity(0))
    assert 64 * MIB <= found.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found.cores_source == "affinity" or Path(found.cores_source).exists()
    assert found.memory_source == "MemTotal" or Path(found.memory_source).exists()


JOIN_AND_DETECT = """
import dataclasses, json, os, sys
for directory in sys.argv[1:]:
    with open(f"{directory}/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
from preflight.container.resources import detect
print(json.dumps(dataclasses.asdict(detect()) | {"affinity": []}))
"""


@pytest.fixture
def real_cgroups() -> Iterator[tuple[Path, Path]]:
    """Yield new, empty v1 cgroups, below one parent each, for cpu and memory."""
    parents = [Path(CGROUP, controller, f"preflight-{uuid.uuid4().hex}") for controller in ("cpu", "memory")]
    made: list[Path] = []
    try:
        for parent in parents:
            if not (parent.parent / "cgroup.procs").is_file():
                pytest.skip("cgroup v1 is not mounted here")
            for directory in (parent, parent / "leaf"):
                try:
                    directory.mkdir()
                except OSError as error:
                    pytest.skip(f"cgroups cannot be made here: {error}")
                made.append(directory)
        yield parents[0], parents[1]
    finally:
        for directory in reversed(made):
            remove_cgroup(directory)


def test_a_real_cgroup(real_cgroups: tuple[Path, Path]) -> None:
    """A process in a leaf below real limits of 1.5 processors and 200 MiB finds both, and its own usage."""
    cpu, memory = real_cgroups
    (cpu / "cpu.cfs_period_us").write_text("100000")
    (cpu / "cpu.cfs_quota_us").write_text("150000")
    (memory / "memory.limit_in_bytes").write_text(str(200 * MIB))
    command = [sys.executable, "-c", JOIN_AND_DETECT, str(cpu / "leaf"), str(memory / "leaf")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    found = json.loads(ended.stdout)
    assert (found["quota"], found["cores"], found["memory_bytes"]) == (1.5, 1, 200 * MIB)
    if len(os.sched_getaffinity(0)) > 1:
        assert found["cores_source"] == str(cpu / "cpu.cfs_quota_us")
    assert found["memory_source"] == str(memory / "memory.limit_in_bytes")
    assert 0 < found["working_set_bytes"] < 200 * MIB
    assert found["warnings"] == []
