"""Settings of a process: what is left alone, and where there is no mallopt."""

import ctypes
from pathlib import Path

import pytest

from preflight.tuner.settings import HUGE_PAGES, explain_fixed_malloc, set_malloc
from preflight.tuner.training import find_source


class Musl:
    """A C library without mallopt."""


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    found = tmp_path / "maps"
    found.write_text("7f00-7f01 r-xp 0 0 0 /usr/lib/libc.so.6\n")
    return found


def test_without_mallopt_malloc_stays(maps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Musl())
    assert explain_fixed_malloc({}, maps) == "the C library has no mallopt"
    assert not set_malloc(tuned=True)
    assert not set_malloc(tuned=False)


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"MALLOC_TOP_PAD_": "1"}, "MALLOC_TOP_PAD_ sets malloc"),
        ({"GLIBC_TUNABLES": "glibc.malloc.top_pad=1"}, "GLIBC_TUNABLES sets malloc"),
        ({"GLIBC_TUNABLES": HUGE_PAGES}, None),
        ({"GLIBC_TUNABLES": f"glibc.malloc.top_pad=1:{HUGE_PAGES}"}, "GLIBC_TUNABLES sets malloc"),
        ({"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=512"}, None),
        ({}, None),
    ],
)
def test_a_malloc_that_the_user_has_set_is_left_alone(maps: Path, variables: dict[str, str], why: str | None) -> None:
    """Huge pages, which a start may have set, are no thresholds."""
    assert explain_fixed_malloc(variables, maps) == why


def test_another_allocator_is_left_alone(maps: Path) -> None:
    maps.write_text("7f00-7f01 r-xp 0 0 0 /usr/lib/x86_64-linux-gnu/libjemalloc.so.2\n")
    assert explain_fixed_malloc({}, maps) == "the allocator is jemalloc"


@pytest.mark.parametrize(
    ("variables", "threads", "source"),
    [
        ({"OMP_NUM_THREADS": "2"}, 2, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "2,1"}, 2, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": ""}, 2, "default"),
        ({"OMP_NUM_THREADS": "garbage"}, 2, "default"),
        ({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2"}, 2, "MKL_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "2"}, 1, "script"),
        ({}, 2, "default"),
    ],
)
def test_who_set_the_threads(variables: dict[str, str], threads: int, source: str) -> None:
    """Torch had two at its import."""
    assert find_source(variables, threads, 2) == source
