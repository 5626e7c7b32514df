"""Shared fixtures: real data, a full disk, a user's package."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Final

import hypothesis
import pytest

from training.data.dataset_info import DatasetInfo
from training.data.prepare import prepare

pytest_plugins = (
    "support.worker.child_coverage", "support.worker.command_line", "markers", "support.worker.services",
    "support.worker.terminals", "support.web.page_browser",
)  # fmt: skip

hypothesis.settings.register_profile("no deadlines", deadline=None)  # a busy machine is no bug
hypothesis.settings.register_profile(
    "the same each time", parent=hypothesis.settings.get_profile("no deadlines"), derandomize=True
)
hypothesis.settings.load_profile("no deadlines")

# A report takes seconds: only tests about it enable it.
os.environ.setdefault("PREFLIGHT_REPORT", "off")
# Tests say themselves which jobs run at the same time.
os.environ.setdefault("PREFLIGHT_PACKING", "off")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
"""Tests run in parallel: OpenMP threads that spin while they wait would slow each other many times."""

IGNORED_AROUND: Final = (signal.SIGINT, signal.SIGHUP)
"""Signals that processes ignore when a shell starts them with `&` or `nohup`."""
ROOM = 8192
"""Bytes that fit on `small_disk`."""


@pytest.fixture
def signals_heard() -> Iterator[None]:
    """Restore the default handling of SIGINT and SIGHUP, which a shell may have set to be ignored."""
    ignored = [number for number in IGNORED_AROUND if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def torch_as_it_was() -> Iterator[None]:
    """Restore torch's threads and its non-deterministic mode after a test that changes them."""
    import torch  # most tests do without it

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def one_torch_thread(torch_as_it_was: None) -> None:  # noqa: ARG001 - for what it does afterwards
    """Compute with one thread, as loader workers do, except where a test says otherwise."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def mnist_dir() -> Path:
    """Return the directory of the four real MNIST files; they are not part of the repository."""
    default = Path(__file__).parents[2] / "shared" / "data" / "mnist"
    found = Path(os.environ.get("PREFLIGHT_TEST_MNIST", default))
    if not (found / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip(f"the real MNIST files are not in {found}; set PREFLIGHT_TEST_MNIST")
    return found


@pytest.fixture(scope="session")
def digits_store(tmp_path_factory: pytest.TempPathFactory) -> DatasetInfo:
    """Return the prepared data set `digits`: 1,500 and 297 real images, no files or network needed."""
    cache = tmp_path_factory.mktemp("digits")
    return prepare("digits", cache, cache, download=False)


@pytest.fixture(params=["full disk", "file size limit"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Yield a directory in which no file grows beyond `ROOM` bytes, and a function that makes room.

    Once by a file system that is full (needs root), once by RLIMIT_FSIZE (Python ignores its SIGXFSZ).
    """
    if request.param == "full disk":
        yield from _full_file_system(tmp_path)
    else:
        yield from _limited_files(tmp_path)


def _full_file_system(directory: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={4 * ROOM}", "tmpfs", str(directory)]
    try:
        refused = subprocess.run(mount, capture_output=True, check=False).returncode != 0
    except FileNotFoundError:
        refused = True
    if refused:
        pytest.skip("mounting a file system needs root")
    filler = directory / "filler"
    filler.write_bytes(bytes(3 * ROOM))
    try:
        yield directory, filler.unlink
    finally:
        subprocess.run(["umount", str(directory)], check=True)  # noqa: S607 - only after `mount` was found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Lift the limit of `small_disk` before pytest writes how the test ended, perhaps to a longer file."""
    try:
        return (yield)
    finally:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def _limited_files(directory: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    limit(ROOM)
    try:
        yield directory, lambda: limit(soft)
    finally:
        limit(soft)


@pytest.fixture
def install_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs a user's package `mine`: its entry points and its one module."""

    def install(group: str, entries: dict[str, str], module: str, source: str) -> None:
        site = tmp_path / "site"
        (site / "mine-1.dist-info").mkdir(parents=True)
        (site / "mine-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
        lines = [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
        (site / "mine-1.dist-info" / "entry_points.txt").write_text("\n".join(lines) + "\n")
        (site / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install
