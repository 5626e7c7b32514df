"""Files of a cgroup that say how much memory a container has, and uses."""

from pathlib import Path

from preflight.container.resources import MemoryUse


def container_memory(root: Path, used: int) -> MemoryUse:
    """Return the memory of a container of 1,000 bytes."""
    (root / "proc/self").mkdir(parents=True)
    (root / "cg").mkdir()
    (root / "proc/self/mountinfo").write_text("1 1 0:1 / /cg rw - cgroup2 x rw\n")
    (root / "proc/self/cgroup").write_text("0::/\n")
    (root / "cg/memory.max").write_text("1000\n")
    (root / "cg/memory.current").write_text(f"{used}\n")
    (root / "cg/memory.stat").write_text("inactive_file 0\nactive_file 0\n")
    return MemoryUse(root, mem_total=1 << 30)
