"""Plan fields fixed at process start: the allocator and the processors."""

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from preflight.contract.plan import Plan
from preflight.launch.starts import NO_REPORT_BYTES, TCMALLOC
from training.process import launch
from training.process.launch import environment_for, find_tcmalloc, pin, process_config

PLAN = Plan(threads=1, micro_batch=32)
WITH_TCMALLOC = replace(PLAN, allocator="tcmalloc")


@pytest.fixture
def libraries(tmp_path: Path) -> tuple[Path, ...]:
    """Return two empty directories, and a third that does not exist."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    return tmp_path / "first", tmp_path / "second", tmp_path / "absent"


def install(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


@pytest.mark.parametrize("place", ["first", "first/x86_64-linux-gnu", "second/aarch64-linux-gnu", "second"])
def test_tcmalloc_is_found_where_distributions_put_it(libraries: tuple[Path, ...], place: str) -> None:
    path = install(libraries[0].parent / place / TCMALLOC)
    assert find_tcmalloc(libraries) == path


def test_the_first_library_directory_wins(libraries: tuple[Path, ...]) -> None:
    """As for the dynamic linker."""
    install(libraries[1] / TCMALLOC)
    first = install(libraries[0] / "x86_64-linux-gnu" / TCMALLOC)
    assert find_tcmalloc(libraries) == first


def test_other_files_are_no_tcmalloc(libraries: tuple[Path, ...]) -> None:
    """Another version, the profiling variant, a directory, a dangling link, one too deep."""
    assert find_tcmalloc(libraries) is None
    install(libraries[0] / "libtcmalloc.so.4")
    install(libraries[0] / "libtcmalloc_minimal.so")
    install(libraries[0] / "a" / "b" / TCMALLOC)
    (libraries[0] / TCMALLOC).mkdir()
    (libraries[1] / TCMALLOC).symlink_to("/nowhere")
    assert find_tcmalloc(libraries) is None


def test_tcmalloc_is_preloaded_before_the_users_libraries(
    libraries: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = install(libraries[0] / TCMALLOC)
    monkeypatch.setattr(launch, "find_tcmalloc", lambda: path)
    plain = {"HOME": "/", "OMP_NUM_THREADS": "3"}
    assert environment_for(WITH_TCMALLOC, plain) == {
        **plain, "LD_PRELOAD": str(path), "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": NO_REPORT_BYTES,
    }  # fmt: skip
    own = {**plain, "LD_PRELOAD": "/mine.so:/yours.so"}
    assert environment_for(WITH_TCMALLOC, own)["LD_PRELOAD"] == f"{path}:/mine.so:/yours.so"
    assert own == {**plain, "LD_PRELOAD": "/mine.so:/yours.so"}


def test_the_default_allocator_keeps_the_environment() -> None:
    environment = {"LD_PRELOAD": "/mine.so"}
    assert environment_for(PLAN, environment) == environment


def test_missing_tcmalloc_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan may be older than the removal of the package."""
    monkeypatch.setattr(launch, "find_tcmalloc", lambda: None)
    assert environment_for(WITH_TCMALLOC, {"HOME": "/"}) == {"HOME": "/"}


def test_only_some_fields_need_a_process() -> None:
    """Allocator, inter-operation threads, and pinning do."""
    apart = [
        WITH_TCMALLOC, replace(PLAN, interop=2), replace(PLAN, affinity="pinned"),
        replace(PLAN, affinity="pinned", threads=2),
    ]  # fmt: skip
    assert len({process_config(plan) for plan in (PLAN, *apart)}) == len(apart) + 1
    together = Plan(
        threads=4, micro_batch=8, eval_batch=3, loader_workers=1, prefetch_factor=2, precision="bfloat16",
        memory_format="channels_last", weight_gradients="products", compile=True,
    )  # fmt: skip
    assert process_config(together) == process_config(PLAN)
    differing = {field.name for field in fields(Plan) if getattr(together, field.name) != getattr(PLAN, field.name)}
    # The device is not measured.
    assert differing == {field.name for field in fields(Plan)} - {
        "allocator", "interop", "affinity", "device",
    }  # fmt: skip


PINNED = """
import os, sys
from preflight.contract.plan import Plan
from preflight.launch.starts import NO_REPORT_BYTES, TCMALLOC
from training.process.launch import pin
os.sched_setaffinity(0, {int(number) for number in sys.argv[2:]})
pin(Plan(threads=int(sys.argv[1]), micro_batch=1, affinity="pinned"))
print(*sorted(os.sched_getaffinity(0)))
"""


def pinned(threads: int, allowed: set[int]) -> set[int]:
    """Return the affinity of a process that may use `allowed` and is pinned to `threads`."""
    command = [sys.executable, "-c", PINNED, str(threads), *map(str, sorted(allowed))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return {int(number) for number in done.stdout.split()}


def test_pinning_stays_within_the_affinity_set() -> None:
    """Its numbers need not begin at 0."""
    last = max(os.sched_getaffinity(0))
    allowed = os.sched_getaffinity(0)
    assert pinned(1, {last}) == {last}
    assert pinned(1, allowed) == {min(allowed)}
    assert pinned(len(allowed), allowed) == allowed
    assert pinned(len(allowed) + 5, allowed) == allowed


def test_a_free_plan_is_not_pinned() -> None:
    before = os.sched_getaffinity(0)
    pin(PLAN)
    assert os.sched_getaffinity(0) == before
