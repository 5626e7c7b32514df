"""What training needs of its surroundings: bytecode, memory that may become executable, shared memory, variables."""

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.errors import OutOfMemory
from training.process.exit_status import ExitStatus
from training.system.requirements import (
    SHARED_MEMORY,
    explain_missing_bytecode,
    explain_no_code,
    explain_thread_variables,
    shared_memory_bytes,
    without_thread_variables,
)

REFUSE_CODE = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN: Linux 6.3
    sys.exit(77)
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""
CONVOLVE = """
import torch
from training.models.factory import build
from training.system.requirements import explain_no_code
model = build("cnn", (1, 28, 28), 10)
model(torch.zeros(2, 1, 28, 28)).sum().backward()
print(explain_no_code())
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "uncompiled").mkdir()
    (tmp_path / "uncompiled" / "__init__.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return "uncompiled"


def test_where_no_process_compiles_anew_nothing_is_said(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first import may write the bytecode, or it is there; a package that is absent or no Python has none."""
    assert explain_missing_bytecode(package) is None
    py_compile.compile(str(tmp_path / package / "__init__.py"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert explain_missing_bytecode(package) is None
    assert explain_missing_bytecode("there_is_no_such_package") is None
    assert explain_missing_bytecode("time") is None


def test_a_variable_that_forbids_bytecode_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is the command that makes up for it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    said = explain_missing_bytecode(package)
    assert said is not None
    assert f"there is no bytecode of {package} and PYTHONDONTWRITEBYTECODE keeps" in said
    assert "python -m compileall -q /" in said


def test_a_place_that_cannot_be_written_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a regular file no directory can be made."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(sys, "pycache_prefix", str(file))
    assert f"{file} cannot be written" in (explain_missing_bytecode(package) or "")


def test_a_process_that_may_not_generate_code_trains_without_onednn() -> None:
    """As under systemd's MemoryDenyWriteExecute=yes, where oneDNN's convolutions cannot create a primitive."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", REFUSE_CODE, CONVOLVE], env=environment, capture_output=True, text=True
    )
    if done.returncode == 77:
        pytest.skip("this kernel cannot refuse executable memory (Linux 6.3)")
    assert done.stdout.startswith("memory may not become executable here (systemd's MemoryDenyWriteExecute=yes"), done
    assert explain_no_code() is None


def test_variables_that_bind_threads_do_not_reach_a_training() -> None:
    """Those that would make it slower are named; the number of threads is the plan's without a word."""
    given = {"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "true", "OMP_THREAD_LIMIT": "1", "KMP_AFFINITY": "", "PATH": "/"}
    assert without_thread_variables({**given, "OMP_WAIT_POLICY": "passive"}) == {
        "PATH": "/", "OMP_WAIT_POLICY": "passive",
    }  # fmt: skip
    assert str(explain_thread_variables(given)).startswith("OMP_THREAD_LIMIT=1, OMP_PROC_BIND=true have no effect")
    assert explain_thread_variables({"OMP_NUM_THREADS": "1"}) is None


@pytest.mark.parametrize("said", [
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers "
    "are out of shared memory. Please try to raise your shared memory limit.",
    "RuntimeError: unable to open shared memory object </torch_1_2_3> in read-write mode: Permission denied (13)",
    "RuntimeError: unable to write to file </torch_1_2_3>: No space left on device (28)",
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: Resource temporarily unavailable (11)",
])  # fmt: skip
def test_shared_memory_that_ran_out_is_not_retried(said: str) -> None:
    """With where it is and how a container gets more."""
    error = ExitStatus(1, f"Traceback\n{said}\n").error("training")
    assert isinstance(error, OutOfMemory)
    assert not error.retry
    assert f"{SHARED_MEMORY} is too small" in error.message
    assert "docker run --shm-size 1g" in error.message


def test_the_room_in_shared_memory_is_that_of_its_file_system() -> None:
    found = os.statvfs(SHARED_MEMORY)
    assert 0 <= shared_memory_bytes() <= found.f_blocks * found.f_frsize
